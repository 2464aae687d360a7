// Messages for people. The library never writes to a terminal: a program installs a sink (tools/common), tests may
// install another, and without one messages are dropped.
#pragma once
#include <functional>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace megaslide {

enum class LogLevel { kDebug, kInfo, kWarning };

using LogSink = std::function<void(LogLevel, const std::string&)>;

// Replaces the sink; returns the one before. Call before threads start.
LogSink set_log_sink(LogSink sink);
void log_message(LogLevel level, const std::string& text);  // thread-safe

template <class... A>
void log_debug(fmt::format_string<A...> format, A&&... args) {
  log_message(LogLevel::kDebug, fmt::format(format, std::forward<A>(args)...));
}
template <class... A>
void log_info(fmt::format_string<A...> format, A&&... args) {
  log_message(LogLevel::kInfo, fmt::format(format, std::forward<A>(args)...));
}
template <class... A>
void log_warning(fmt::format_string<A...> format, A&&... args) {
  log_message(LogLevel::kWarning, fmt::format(format, std::forward<A>(args)...));
}

}  // namespace megaslide
