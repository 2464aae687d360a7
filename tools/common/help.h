// --help in one layout for all programs, whatever the version of CLI11.
#pragma once
#include <string>

#include "common/run_tool.h"

namespace megaslide {

// Usage, summary, options by group in order of declaration, commands, examples. Lines of at most 100 columns.
std::string format_help(const CLI::App& app, const ToolInfo& info);

// The long option of `app` that is most like `flag` ("--lerning-rate"), or "".
std::string nearest_option(const CLI::App& app, const std::string& flag);

}  // namespace megaslide
