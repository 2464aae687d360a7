#include "common/flags.h"

#include <charconv>
#include <functional>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "config/units.h"

namespace megaslide {
namespace {

// An option whose text goes through `parse`, which returns "" or what was expected.
CLI::Option* add_parsed(CLI::App& app, const std::string& name, const char* type, const std::string& description,
                        const std::function<std::string(const std::string&)>& parse) {
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [parse, name](const std::string& text) {
        const std::string expected = parse(text);
        if (!expected.empty()) throw CLI::ValidationError(name.substr(name.rfind(',') + 1), fmt::format("expected {}, got \"{}\"", expected, text));
      },
      description);
  option->type_name(type);
  return option;
}

}  // namespace

CLI::Option* add_integer(CLI::App& app, const std::string& name, int64_t& value, int64_t low, int64_t high, const std::string& description) {
  return add_parsed(app, name, "N", description, [&value, low, high](const std::string& text) -> std::string {
    const std::optional<int64_t> n = parse_integer(text);
    if (!n || *n < low || *n > high) return fmt::format("an integer from {} to {}", low, high);
    value = *n;
    return {};
  });
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, double low, double high, const std::string& description) {
  return add_parsed(app, name, "X", description, [&value, low, high](const std::string& text) -> std::string {
    const std::optional<double> x = parse_number(text);
    if (!x || !(*x >= low && *x <= high)) return fmt::format("a number from {} to {}", low, high);
    value = *x;
    return {};
  });
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value, const std::vector<std::string>& choices,
                        const std::string& description) {
  const std::string type = fmt::format("{}", fmt::join(choices, "|"));
  return add_parsed(app, name, type.c_str(), description, [&value, choices](const std::string& text) -> std::string {
    for (const std::string& choice : choices)
      if (text == choice) {
        value = text;
        return {};
      }
    return fmt::format("one of {}", fmt::join(choices, ", "));
  });
}

CLI::Option* add_seed(CLI::App& app, const std::string& name, uint64_t& value, const std::string& description) {
  return add_parsed(app, name, "N", description, [&value](const std::string& text) -> std::string {
    const bool plain = !text.empty() && (text.size() == 1 || text[0] != '0');  // 010 is no octal number here
    uint64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (!plain || error != std::errc() || end != text.data() + text.size()) return "an integer from 0 to 18446744073709551615";
    value = n;
    return {};
  });
}

CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t& value, const std::string& description) {
  return add_parsed(app, name, "BYTES", description, [&value](const std::string& text) -> std::string {
    const std::optional<int64_t> n = parse_bytes(text);
    if (!n) return "a number of bytes such as 5GB or 24GiB";
    value = *n;
    return {};
  });
}

CLI::Option* add_size(CLI::App& app, const std::string& name, int64_t& width, int64_t& height, const std::string& description) {
  return add_parsed(app, name, "WxH", description, [&width, &height](const std::string& text) -> std::string {
    const auto size = parse_extents(text, 2);
    if (!size) return "a width and a height such as 832x480";
    width = (*size)[0], height = (*size)[1];
    return {};
  });
}

CLI::Option* add_grid(CLI::App& app, const std::string& name, std::array<int64_t, 3>& value, const std::string& description) {
  return add_parsed(app, name, "TxHxW", description, [&value](const std::string& text) -> std::string {
    const auto grid = parse_extents(text, 3);
    if (!grid) return "frames, height and width such as 5x30x52";
    value = {(*grid)[0], (*grid)[1], (*grid)[2]};
    return {};
  });
}

}  // namespace megaslide
