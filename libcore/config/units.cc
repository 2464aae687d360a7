#include "config/units.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace megaslide {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Splits "24GiB" into 24 and "GiB"; one blank may stand between.
bool split_unit(std::string_view text, double& value, std::string_view& unit) {
  size_t i = 0;
  while (i < text.size() && (is_digit(text[i]) || text[i] == '.' || text[i] == '-')) ++i;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E') && i + 1 < text.size() &&
      (is_digit(text[i + 1]) || ((text[i + 1] == '-' || text[i + 1] == '+') && i + 2 < text.size() && is_digit(text[i + 2])))) {
    i += 2;
    while (i < text.size() && is_digit(text[i])) ++i;
  }
  const std::optional<double> number = parse_number(text.substr(0, i));
  if (!number || *number < 0) return false;
  value = *number;
  unit = text.substr(i);
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return true;
}

// The factor of a prefix in front of `base` ("GiB" before "B"), 0 when the unit is another one.
double prefix_factor(std::string_view unit, std::string_view base) {
  if (unit.empty()) return 1;
  if (unit.size() < base.size() || unit.substr(unit.size() - base.size()) != base) return 0;
  const std::string_view prefix = unit.substr(0, unit.size() - base.size());
  if (prefix.empty()) return 1;
  if (prefix == "k" || prefix == "K") return 1e3;
  static constexpr std::string_view kLetters = "KMGTP";
  const size_t power = kLetters.find(prefix[0]);
  if (power == std::string_view::npos || prefix.size() > 2 || (prefix.size() == 2 && prefix[1] != 'i')) return 0;
  return std::pow(prefix.size() == 2 ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

std::optional<int64_t> whole(double value) {
  if (!(value >= 0) || value > 0x1p62) return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) {
  const std::string_view digits = !text.empty() && text[0] == '-' ? text.substr(1) : text;
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  for (char c : digits)
    if (!is_digit(c)) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  const std::string_view digits = !text.empty() && text[0] == '-' ? text.substr(1) : text;
  if (digits.empty() || !is_digit(digits[0])) return std::nullopt;
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return std::nullopt;
  if (const size_t dot = digits.find('.'); dot != std::string_view::npos && (dot + 1 == digits.size() || !is_digit(digits[dot + 1])))
    return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  if (const std::optional<int64_t> plain = parse_integer(text)) return *plain >= 0 && *plain <= int64_t{1} << 62 ? plain : std::nullopt;
  double value = 0;
  std::string_view unit;
  if (!split_unit(text, value, unit)) return std::nullopt;
  const double factor = prefix_factor(unit, "B");
  return factor == 0 ? std::nullopt : whole(value * factor);
}

std::optional<double> parse_rate(std::string_view text, std::string_view unit) {
  double value = 0;
  std::string_view rest;
  if (!split_unit(text, value, rest)) return std::nullopt;
  if (rest.empty()) return value;
  if (rest.size() < 2 || rest.substr(rest.size() - 2) != "/s") return std::nullopt;
  rest.remove_suffix(2);
  if (rest.empty()) return std::nullopt;
  const double factor = prefix_factor(rest, unit);
  return factor == 0 || !std::isfinite(value * factor) ? std::nullopt : std::optional<double>(value * factor);
}

std::optional<double> parse_seconds(std::string_view text) {
  double value = 0;
  std::string_view unit;
  if (!split_unit(text, value, unit)) return std::nullopt;
  if (unit.empty() || unit == "s") return value;
  if (unit == "ns") return value * 1e-9;
  if (unit == "us") return value * 1e-6;
  if (unit == "ms") return value * 1e-3;
  if (unit == "min") return value * 60;
  if (unit == "h") return value * 3600;
  return std::nullopt;
}

std::optional<int64_t> parse_count(std::string_view text) {
  if (const std::optional<int64_t> plain = parse_integer(text)) return *plain >= 0 ? plain : std::nullopt;
  double value = 0;
  std::string_view unit;
  if (!split_unit(text, value, unit) || unit.size() != 1) return std::nullopt;
  const double factor = unit == "k" || unit == "K" ? 1e3 : unit == "M" ? 1e6 : unit == "G" ? 1e9 : 0;
  const double product = value * factor;
  if (factor == 0 || product != std::floor(product)) return std::nullopt;
  return whole(product);
}

std::optional<std::vector<int64_t>> parse_extents(std::string_view text, size_t n) {
  std::vector<int64_t> values;
  while (values.size() < n) {
    const size_t end = std::min(text.find('x'), text.size());
    const std::optional<int64_t> v = parse_integer(text.substr(0, end));
    if (!v || *v < 1 || *v > INT32_MAX) return std::nullopt;
    values.push_back(*v);
    if (end == text.size()) return values.size() == n ? std::optional(values) : std::nullopt;
    text.remove_prefix(end + 1);
  }
  return std::nullopt;
}

std::string format_bytes_exact(int64_t bytes) {
  static constexpr const char* kBinary[] = {"TiB", "GiB", "MiB", "KiB"};
  for (int i = 0; i < 4; ++i)
    if (const int64_t unit = int64_t{1} << (40 - 10 * i); bytes >= unit && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, kBinary[i]);
  static constexpr const char* kDecimal[] = {"TB", "GB", "MB", "kB"};
  int64_t unit = 1000000000000;
  for (int i = 0; i < 4; ++i, unit /= 1000)
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{}{}", bytes / unit, kDecimal[i]);
  return fmt::format("{}", bytes);
}

std::string format_number(double value) { return fmt::format("{}", value); }

}  // namespace megaslide
