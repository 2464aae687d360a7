// YAML text as a tree in which everything has a position. A strict subset: one document, UTF-8, no anchors, aliases,
// merge keys or tags, bounded size and depth.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  int line = 1, column = 1;  // from 1; columns count bytes
  bool plain = true;         // a scalar without quotes
  std::string scalar;
  std::vector<YamlNode> items;     // of a list
  std::vector<YamlEntry> entries;  // of a map, in file order; keys are scalars
};

struct YamlEntry {
  YamlNode key, value;
};

constexpr size_t kMaxYamlBytes = 1 << 20;
constexpr int kMaxYamlDepth = 32;

// Throws a usage Error "NAME:line:column: …" at the first syntax error. An empty text is a null node.
YamlNode parse_yaml(std::string_view text, const std::string& name);

// The text of a file of at most kMaxYamlBytes, or of standard input for "-". Throws Error.
std::string read_yaml_file(const std::string& path);

// As it stands in a YAML file: plain where that reads back as the same text, else in double quotes.
std::string yaml_quote(const std::string& text);

// What a message says was found: "abc" in quotes, a list, a map, nothing.
std::string describe_node(const YamlNode& node);

}  // namespace megaslide
