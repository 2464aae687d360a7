// How each type of key is read and written.
#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "config/schema.h"
#include "config/units.h"

namespace megaslide {
namespace {

void expected(Problems& problems, const YamlNode& node, const std::string& what) {
  std::string got = describe_node(node);
  if (node.kind == YamlNode::Kind::kScalar && !node.plain) got = "the text " + got;
  problems.push_back({&node, fmt::format("expected {}, got {}", what, got)});
}

bool plain_scalar(const YamlNode& node) { return node.kind == YamlNode::Kind::kScalar && node.plain; }

std::string describe_integers(int64_t low, int64_t high) {
  if (high == std::numeric_limits<int64_t>::max()) return low == 0 ? "an integer >= 0" : fmt::format("an integer >= {}", low);
  return fmt::format("an integer from {} to {}", low, high);
}

std::optional<int64_t> read_integer(const YamlNode& node, int64_t low, int64_t high, Problems& problems) {
  const std::optional<int64_t> n = plain_scalar(node) ? parse_integer(node.scalar) : std::nullopt;
  if (n && *n >= low && *n <= high) return n;
  expected(problems, node, describe_integers(low, high));
  return std::nullopt;
}

std::optional<double> read_number(const YamlNode& node, const NumberRange& range, Problems& problems) {
  const std::optional<double> x = plain_scalar(node) ? parse_number(node.scalar) : std::nullopt;
  if (x && range.contains(*x)) return x;
  expected(problems, node, range.describe());
  return std::nullopt;
}

// Exactly N elements through `element`, or problems.
template <class T, size_t N, class F>
std::optional<std::array<T, N>> read_array(const YamlNode& node, Problems& problems, F element) {
  if (node.kind != YamlNode::Kind::kList || node.items.size() != N) {
    std::string got = describe_node(node);
    if (node.kind == YamlNode::Kind::kList) got = fmt::format("a list of {}", node.items.size());
    problems.push_back({&node, fmt::format("expected a list of {} numbers, got {}", N, got)});
    return std::nullopt;
  }
  std::array<T, N> values{};
  bool good = true;
  for (size_t i = 0; i < N; ++i) {
    const std::optional<T> v = element(node.items[i]);
    if (v) values[i] = *v;
    else good = false;
  }
  return good ? std::optional(values) : std::nullopt;
}

template <class T, size_t N>
std::string write_array(const std::array<T, N>& values) {
  std::string s;
  for (const T& v : values) s += fmt::format("{}{}", s.empty() ? "" : ", ", v);
  return "[" + s + "]";
}

// Makes a key of an optional variable from a reader of its value.
template <class T, class Read, class Write>
Key optional_key(const std::string& path, std::optional<T>& v, Read read, Write write) {
  Key key{path,
          [&v, read](const YamlNode& node, Problems& p) {
            if (node.kind == YamlNode::Kind::kNull) v.reset();
            else if (const auto value = read(node, p)) v = *value;
          },
          [&v, write] { return v ? write(*v) : std::string(); }};
  key.optional = true;
  return key;
}

template <class T, class Read, class Write>
Key plain_key(const std::string& path, T& v, Read read, Write write) {
  return {path,
          [&v, read](const YamlNode& node, Problems& p) {
            if (const auto value = read(node, p)) v = *value;
          },
          [&v, write] { return write(v); }};
}

std::string write_integer(int64_t v) { return fmt::format("{}", v); }

std::optional<std::string> read_text(const YamlNode& node, size_t longest, Problems& p) {
  if (node.kind == YamlNode::Kind::kScalar && !node.scalar.empty() && node.scalar.size() <= longest) return node.scalar;
  if (node.kind == YamlNode::Kind::kScalar && node.scalar.size() > longest)
    p.push_back({&node, fmt::format("expected at most {} bytes, got {}", longest, node.scalar.size())});
  else expected(p, node, "a text");
  return std::nullopt;
}

// A scalar, or a list of them; an empty list is `empty`'s to allow.
template <class T, class F>
std::optional<std::vector<T>> read_one_or_more(const YamlNode& node, Problems& p, const char* what, F element, bool empty = false) {
  std::vector<T> values;
  const size_t before = p.size();
  const auto take = [&](const YamlNode& n) {
    if (const std::optional<T> v = element(n)) values.push_back(*v);
  };
  if (node.kind == YamlNode::Kind::kScalar) take(node);
  else if (node.kind == YamlNode::Kind::kList && (empty || !node.items.empty())) std::for_each(node.items.begin(), node.items.end(), take);
  else expected(p, node, what);
  return p.size() == before ? std::optional(std::move(values)) : std::nullopt;
}

std::optional<std::vector<std::string>> read_texts(const YamlNode& node, Problems& p) {
  constexpr size_t kLongest = 16384;
  return read_one_or_more<std::string>(node, p, "a text or a list of texts", [&](const YamlNode& n) { return read_text(n, kLongest, p); }, true);
}

std::string write_texts(const std::vector<std::string>& texts) {
  std::string s;
  for (const std::string& t : texts) s += (s.empty() ? "" : ", ") + yaml_quote(t);
  return s.empty() ? s : "[" + s + "]";
}

}  // namespace

std::string NumberRange::describe() const {
  const bool lower = low > -std::numeric_limits<double>::infinity(), upper = high < std::numeric_limits<double>::infinity();
  if (lower && upper && !above_low) return fmt::format("a number from {} to {}", low, high);
  std::string s = "a number";
  if (lower) s += fmt::format(" {} {}", above_low ? ">" : ">=", low);
  if (upper) s += fmt::format("{} <= {}", lower ? " and" : "", high);
  return s;
}

std::optional<size_t> read_word(const YamlNode& node, const std::vector<std::string>& words, Problems& problems) {
  if (node.kind == YamlNode::Kind::kScalar)
    for (size_t i = 0; i < words.size(); ++i)
      if (words[i] == node.scalar) return i;
  expected(problems, node, fmt::format("{}{}", words.size() > 1 ? "one of " : "", fmt::join(words, ", ")));
  return std::nullopt;
}

Key& Schema::text(const std::string& path, std::string& v, size_t longest) {
  return add(plain_key(path, v, [longest](const YamlNode& node, Problems& p) { return read_text(node, longest, p); },
                       [](const std::string& s) { return s.empty() ? s : yaml_quote(s); }));
}

Key& Schema::boolean(const std::string& path, bool& v) {
  return add(plain_key(path, v,
                       [](const YamlNode& node, Problems& p) -> std::optional<bool> {
                         if (plain_scalar(node) && (node.scalar == "true" || node.scalar == "false")) return node.scalar == "true";
                         expected(p, node, "true or false");
                         return std::nullopt;
                       },
                       [](bool b) { return std::string(b ? "true" : "false"); }));
}

Key& Schema::integer(const std::string& path, int64_t& v, int64_t low, int64_t high) {
  return add(plain_key(path, v, [=](const YamlNode& node, Problems& p) { return read_integer(node, low, high, p); }, write_integer));
}

Key& Schema::integer(const std::string& path, std::optional<int64_t>& v, int64_t low, int64_t high) {
  return add(optional_key(path, v, [=](const YamlNode& node, Problems& p) { return read_integer(node, low, high, p); }, write_integer));
}

Key& Schema::number(const std::string& path, double& v, NumberRange range) {
  return add(plain_key(path, v, [range](const YamlNode& node, Problems& p) { return read_number(node, range, p); }, format_number));
}

Key& Schema::number(const std::string& path, std::optional<double>& v, NumberRange range) {
  return add(optional_key(path, v, [range](const YamlNode& node, Problems& p) { return read_number(node, range, p); }, format_number));
}

Key& Schema::bytes(const std::string& path, int64_t& v, int64_t low) {
  return add(plain_key(path, v,
                       [low](const YamlNode& node, Problems& p) -> std::optional<int64_t> {
                         const std::optional<int64_t> n = plain_scalar(node) ? parse_bytes(node.scalar) : std::nullopt;
                         if (n && *n >= low) return n;
                         expected(p, node, low > 0 ? fmt::format("bytes such as 24GiB, at least {}", format_bytes_exact(low)) : "bytes such as 24GiB or 5GB");
                         return std::nullopt;
                       },
                       format_bytes_exact));
}

Key& Schema::rate(const std::string& path, double& v, const std::string& unit, NumberRange range) {
  return add(plain_key(path, v,
                       [unit, range](const YamlNode& node, Problems& p) -> std::optional<double> {
                         const std::optional<double> x = plain_scalar(node) ? parse_rate(node.scalar, unit) : std::nullopt;
                         if (x && range.contains(*x)) return x;
                         expected(p, node, fmt::format("a rate such as 12G{}/s{}", unit, range.above_low ? " > 0" : ""));
                         return std::nullopt;
                       },
                       format_number));
}

Key& Schema::seconds(const std::string& path, double& v, NumberRange range) {
  return add(plain_key(path, v,
                       [range](const YamlNode& node, Problems& p) -> std::optional<double> {
                         const std::optional<double> x = plain_scalar(node) ? parse_seconds(node.scalar) : std::nullopt;
                         if (x && range.contains(*x)) return x;
                         expected(p, node, "seconds such as 90, 2min or 5us: " + range.describe());
                         return std::nullopt;
                       },
                       format_number));
}

Key& Schema::integers(const std::string& path, std::array<int64_t, 3>& v, int64_t low, int64_t high) {
  return add(plain_key(path, v,
                       [=](const YamlNode& node, Problems& p) {
                         return read_array<int64_t, 3>(node, p, [&](const YamlNode& n) { return read_integer(n, low, high, p); });
                       },
                       write_array<int64_t, 3>));
}

Key& Schema::integers(const std::string& path, std::optional<std::array<int64_t, 3>>& v, int64_t low, int64_t high) {
  return add(optional_key(path, v,
                          [=](const YamlNode& node, Problems& p) {
                            return read_array<int64_t, 3>(node, p, [&](const YamlNode& n) { return read_integer(n, low, high, p); });
                          },
                          write_array<int64_t, 3>));
}

Key& Schema::integers(const std::string& path, std::vector<int64_t>& v, int64_t low, int64_t high) {
  return add(plain_key(path, v,
                       [=](const YamlNode& node, Problems& p) {
                         return read_one_or_more<int64_t>(node, p, "an integer or a list of integers",
                                                          [&](const YamlNode& n) { return read_integer(n, low, high, p); });
                       },
                       [](const std::vector<int64_t>& values) {
                         return values.empty() ? "" : values.size() == 1 ? write_integer(values[0]) : fmt::format("[{}]", fmt::join(values, ", "));
                       }));
}

Key& Schema::numbers(const std::string& path, std::array<double, 3>& v, NumberRange range) {
  return add(plain_key(path, v,
                       [range](const YamlNode& node, Problems& p) {
                         return read_array<double, 3>(node, p, [&](const YamlNode& n) { return read_number(n, range, p); });
                       },
                       write_array<double, 3>));
}

Key& Schema::numbers(const std::string& path, std::optional<std::array<double, 3>>& v, NumberRange range) {
  return add(optional_key(path, v,
                          [range](const YamlNode& node, Problems& p) {
                            return read_array<double, 3>(node, p, [&](const YamlNode& n) { return read_number(n, range, p); });
                          },
                          write_array<double, 3>));
}

Key& Schema::numbers(const std::string& path, std::array<double, 2>& v, NumberRange range) {
  return add(plain_key(path, v,
                       [range](const YamlNode& node, Problems& p) {
                         return read_array<double, 2>(node, p, [&](const YamlNode& n) { return read_number(n, range, p); });
                       },
                       write_array<double, 2>));
}

Key& Schema::texts(const std::string& path, std::vector<std::string>& v) {
  return add(plain_key(path, v, read_texts, write_texts));
}

Key& Schema::paths(const std::string& path, std::vector<std::string>& v) {
  return add(plain_key(path, v, read_texts, [](const std::vector<std::string>& paths) { return paths.size() == 1 ? yaml_quote(paths[0]) : write_texts(paths); }));
}

Key& Schema::size(const std::string& path, int64_t& width, int64_t& height, bool optional) {
  Key key{path,
          [&width, &height](const YamlNode& node, Problems& p) {
            if (node.kind == YamlNode::Kind::kNull) {
              width = height = 0;
              return;
            }
            const auto extents = plain_scalar(node) ? parse_extents(node.scalar, 2) : std::nullopt;
            if (!extents || (*extents)[0] > 65536 || (*extents)[1] > 65536) return expected(p, node, "a width and a height such as 832x480");
            width = (*extents)[0], height = (*extents)[1];
          },
          [&width, &height] { return width == 0 ? std::string() : fmt::format("{}x{}", width, height); }};
  key.optional = optional;
  return add(std::move(key));
}

Key& Schema::automatic(const std::string& path, int64_t& v, int64_t high) {
  return add(plain_key(path, v,
                       [high](const YamlNode& node, Problems& p) -> std::optional<int64_t> {
                         if (plain_scalar(node) && node.scalar == "auto") return kAuto;
                         if (plain_scalar(node) && node.scalar == "off") return kOff;
                         const std::optional<int64_t> n = plain_scalar(node) ? parse_integer(node.scalar) : std::nullopt;
                         if (n && *n >= 1 && *n <= high) return n;
                         expected(p, node, fmt::format("auto, off or an integer from 1 to {}", high));
                         return std::nullopt;
                       },
                       [](int64_t n) { return n == kAuto ? "auto" : n == kOff ? "off" : fmt::format("{}", n); }));
}

}  // namespace megaslide
