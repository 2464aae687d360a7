#include "common/help.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "config/nearest.h"

namespace megaslide {
namespace {

constexpr size_t kColumns = 100, kTextColumn = 28;

bool is_positional(const CLI::Option* option) { return option->get_lnames().empty() && option->get_snames().empty(); }

// "-o, --output DIR" or "SRC".
std::string left_side(const CLI::Option* option) {
  if (is_positional(option)) return option->get_name(true) + (option->get_expected_max() > 1 ? "..." : "");
  std::string s;
  for (const std::string& n : option->get_snames()) s += (s.empty() ? "-" : ", -") + n;
  if (s.empty()) s = "    ";
  for (const std::string& n : option->get_lnames()) s += (s == "    " ? "--" : ", --") + n;
  if (option->get_items_expected_max() > 0) s += " " + option->get_type_name();
  return s;
}

void append_wrapped(std::string& out, const std::string& left, const std::string& text) {
  std::string line = "  " + left;
  if (line.size() + 2 > kTextColumn) {
    out += line + "\n";
    line.clear();
  }
  line.resize(kTextColumn, ' ');
  size_t i = 0;
  bool fresh = true;
  while (i < text.size()) {
    const size_t end = std::min(text.find(' ', i), text.size());
    const std::string word = text.substr(i, end - i);
    if (!fresh && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line.assign(kTextColumn, ' ');
      fresh = true;
    }
    line += (fresh ? "" : " ") + word;
    fresh = false;
    i = end + 1;
  }
  out += line + "\n";
}

std::string usage_line(const CLI::App& app, const std::string& name) {
  std::string s = "Usage: " + name;
  if (!app.get_subcommands([](const CLI::App*) { return true; }).empty()) s += " [COMMAND]";
  s += " [OPTION]...";
  for (const CLI::Option* option : app.get_options()) {
    if (!is_positional(option)) continue;
    const std::string p = option->get_name(true) + (option->get_expected_max() > 1 ? "..." : "");
    s += option->get_required() ? " " + p : " [" + p + "]";
  }
  return s + "\n";
}

}  // namespace

std::string format_help(const CLI::App& app, const ToolInfo& info) {
  const CLI::App* shown = &app;
  std::string name = info.name;
  while (!shown->get_subcommands().empty()) {
    shown = shown->get_subcommands().front();
    name += " " + shown->get_name();
  }
  std::string out = usage_line(*shown, name) + "\n" + (shown == &app ? info.summary : shown->get_description()) + "\n";
  std::vector<std::string> groups;
  for (const CLI::Option* option : shown->get_options())
    if (!option->get_group().empty() && std::find(groups.begin(), groups.end(), option->get_group()) == groups.end())
      groups.push_back(option->get_group());
  std::stable_partition(groups.begin(), groups.end(), [](const std::string& g) { return g != "Common"; });
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const CLI::Option* option : shown->get_options())
      if (option->get_group() == group) append_wrapped(out, left_side(option), option->get_description());
  }
  const auto commands = shown->get_subcommands([](const CLI::App*) { return true; });
  if (!commands.empty()) out += "\nCommands:\n";
  for (const CLI::App* command : commands) append_wrapped(out, command->get_name(), command->get_description());
  if (shown == &app && !info.examples.empty()) {
    out += info.examples.size() == 1 ? "\nExample:\n" : "\nExamples:\n";
    for (const std::string& example : info.examples) out += "  " + example + "\n";
    out += "\nManual: man " + info.name + "\n";
  }
  return out;
}

std::string nearest_option(const CLI::App& app, const std::string& flag) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& n : option->get_lnames()) names.push_back("--" + n);
  return nearest_name(flag.substr(0, flag.find('=')), names);
}

}  // namespace megaslide
