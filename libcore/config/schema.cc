#include "config/schema.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "config/nearest.h"

namespace megaslide {
namespace {

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }

bool is_within(std::string_view path, std::string_view section) {
  return section.empty() || (path.size() > section.size() && path[section.size()] == '.' && path.substr(0, section.size()) == section);
}

// Where a key that is unknown here may belong: the nearest sibling, or the same name in another section.
std::string suggestion(const std::string& section, const std::string& name, const Schema& schema) {
  const std::string prefix = section.empty() ? "" : section + ".";
  if (const std::string near = nearest_name(name, schema.names_in(section)); !near.empty()) return prefix + near;
  for (const Key& key : schema.keys())
    if (last_name(key.path) == name) return key.path;
  if (name.size() < 6) return {};  // a short name resembles too many
  std::vector<std::string> names;
  for (const Key& key : schema.keys()) names.emplace_back(last_name(key.path));
  const std::string near = nearest_name(name, names);
  for (const Key& key : schema.keys())
    if (!near.empty() && last_name(key.path) == near) return key.path;
  return {};
}

std::string unknown_key(const std::string& section, const std::string& name, const Schema& schema) {
  if (name.find('.') != std::string::npos && schema.find((section.empty() ? "" : section + ".") + name) != nullptr)
    return fmt::format("unknown key; in a file write {}: under {}:", last_name(name), name.substr(0, name.rfind('.')));
  if (const std::string near = suggestion(section, name, schema); !near.empty()) return "unknown key; did you mean " + near + "?";
  std::string known;
  for (const std::string& n : schema.names_in(section)) known += (known.empty() ? "" : ", ") + n;
  return "unknown key; known here: " + known;
}

// Findings go through `report(node, path, text)`, places through `note(path, node)`, whatever the source.
struct Walk {
  const Schema& schema;
  std::function<void(const YamlNode&, const std::string&, const std::string&)> report;
  std::function<void(const std::string&, const YamlNode&)> note;

  void value(const std::string& path, const YamlNode& node) const {
    if (const Key* key = schema.find(path)) {
      if (node.kind == YamlNode::Kind::kNull && !key->optional) return report(node, path, "expected a value, got nothing");
      Problems problems;
      key->read(node, problems);
      for (const Problem& p : problems) report(*p.node, path, p.text);
      note(path, node);
    } else if (node.kind == YamlNode::Kind::kMap) {
      note(path, node);
      map(path, node);
    } else if (node.kind != YamlNode::Kind::kNull) {
      std::string names;
      for (const std::string& n : schema.names_in(path)) names += (names.empty() ? "" : ", ") + n;
      report(node, path, fmt::format("expected a section with keys {}, got {}", names, describe_node(node)));
    }
  }

  void map(const std::string& section, const YamlNode& node) const {
    std::map<std::string, const YamlNode*> seen;
    for (const auto& [key, child] : node.entries) {
      const std::string path = (section.empty() ? "" : section + ".") + key.scalar;
      const bool fits = key.scalar.find('.') == std::string::npos && (schema.find(path) != nullptr || schema.is_section(path));
      const auto [first, fresh] = seen.try_emplace(key.scalar, &key);
      if (!fits) {
        const std::string shown = (section.empty() ? "" : section + ".") + (key.scalar.size() > 80 ? key.scalar.substr(0, 80) + "..." : key.scalar);
        report(key, shown, unknown_key(section, key.scalar, schema));
      } else if (!fresh) {
        report(key, path, fmt::format("given twice, first in line {}", first->second->line));
      } else {
        value(path, child);
      }
    }
  }
};

}  // namespace

Key& Schema::add(Key key) {
  MS_CHECK(find(key.path) == nullptr, "key {} twice", key.path);
  keys_.push_back(std::move(key));
  return keys_.back();
}

const Key* Schema::find(const std::string& path) const {
  for (const Key& key : keys_)
    if (key.path == path) return &key;
  return nullptr;
}

bool Schema::is_section(const std::string& path) const {
  return !path.empty() && std::any_of(keys_.begin(), keys_.end(), [&](const Key& key) { return is_within(key.path, path); });
}

std::vector<std::string> Schema::names_in(const std::string& section) const {
  const size_t prefix = section.empty() ? 0 : section.size() + 1;
  std::vector<std::string> names;
  for (const Key& key : keys_) {
    if (!is_within(key.path, section)) continue;
    const std::string_view rest = std::string_view(key.path).substr(prefix), name = rest.substr(0, rest.find('.'));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  }
  return names;
}

void ConfigErrors::add(int line, int column, const std::string& text) {
  lines_.push_back({line, column, fmt::format("{}:{}:{}: {}", file_, line, column, text)});
}

void ConfigErrors::add(const std::string& place, const std::string& text) {
  lines_.push_back({std::numeric_limits<int>::max(), 0, place + ": " + text});
}

void ConfigErrors::throw_if_any(const std::string& manual) {
  if (lines_.empty()) return;
  std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return std::pair(a.line, a.column) < std::pair(b.line, b.column); });
  constexpr size_t kShown = 25;
  std::string text;
  if (lines_.size() > 1) text = fmt::format("{} errors in the configuration", lines_.size());
  for (size_t i = 0; i < lines_.size() && i < kShown; ++i) text += (lines_.size() > 1 ? "\n" : "") + lines_[i].text;
  if (lines_.size() > kShown) text += fmt::format("\n... and {} more", lines_.size() - kShown);
  throw usage_error(text, fmt::format("man {} describes every key", manual));
}

void Places::report(ConfigErrors& errors, const std::string& path, const std::string& text) const {
  std::string where = path;
  auto found = places_.find(where);
  while (found == places_.end() && where.find('.') != std::string::npos) {
    where.resize(where.rfind('.'));
    found = places_.find(where);
  }
  const std::string message = path + ": " + text;
  if (found == places_.end()) errors.add(1, 1, message);
  else if (!found->second.set.empty()) errors.add(found->second.set, message);
  else errors.add(found->second.line, found->second.column, message);
}

void read_tree(const YamlNode& root, const Schema& schema, ConfigErrors& errors, Places& places) {
  if (root.kind == YamlNode::Kind::kNull) return errors.add(1, 1, "empty: expected keys and values");
  if (root.kind != YamlNode::Kind::kMap)
    return errors.add(root.line, root.column, "expected keys and values at the top, got " + describe_node(root));
  const Walk walk{schema,
                  [&](const YamlNode& node, const std::string& path, const std::string& text) { errors.add(node.line, node.column, quote_unless_plain(path) + ": " + text); },
                  [&](const std::string& path, const YamlNode& node) { places.note(path, node.line, node.column); }};
  walk.map("", root);
}

void apply_set(const std::string& assignment, const Schema& schema, ConfigErrors& errors, Places& places) {
  const std::string place = "--set " + quote_unless_plain(assignment.size() > 200 ? assignment.substr(0, 200) : assignment);
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) return errors.add(place, "expected key=value");
  if (find_invalid_utf8(assignment) != assignment.size()) return errors.add(place, "not UTF-8 text, which a configuration is");
  const std::string path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  if (schema.find(path) == nullptr && !schema.is_section(path)) {
    const size_t dot = path.rfind('.');
    const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
    return errors.add(place, quote_unless_plain(path) + ": " + unknown_key(schema.is_section(section) ? section : "", std::string(last_name(path)), schema));
  }
  YamlNode node;
  const bool structured = !text.empty() && std::string("[{\"'").find(text[0]) != std::string::npos;
  if (structured) {
    try {
      node = parse_yaml(text, place);
    } catch (const Error& e) {
      return errors.add(place, e.message().substr(std::min(e.message().size(), place.size() + 1)));
    }
  } else if (!text.empty() && text != "null" && text != "~") {  // a shell's word is taken as it is, colons and all
    node.kind = YamlNode::Kind::kScalar;
    node.scalar = text;
  }
  const Walk walk{schema, [&](const YamlNode&, const std::string& p, const std::string& message) { errors.add(place, quote_unless_plain(p) + ": " + message); },
                  [&](const std::string& p, const YamlNode&) { places.note(p, place); }};
  if (schema.find(path) == nullptr && node.kind == YamlNode::Kind::kNull) return errors.add(place, path + ": is a section; set one of its keys");
  walk.value(path, node);
}

void read_record(const YamlNode& node, const Schema& schema, Problems& problems) {
  if (node.kind != YamlNode::Kind::kMap) return problems.push_back({&node, "expected a map, got " + describe_node(node)});
  const Walk walk{schema,
                  [&](const YamlNode& at, const std::string& path, const std::string& text) { problems.push_back({&at, quote_unless_plain(path) + ": " + text}); },
                  [](const std::string&, const YamlNode&) {}};
  walk.map("", node);
}

std::string write_record(const Schema& schema) {
  std::string out;
  for (const Key& key : schema.keys())
    if (const std::string value = key.write(); !value.empty()) out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", key.path, value);
  return "{" + out + "}";
}

std::string write_tree(const Schema& schema, const std::string& heading) {
  std::string out = heading;
  std::vector<std::string> open;  // sections of the last line
  for (const Key& key : schema.keys()) {
    const std::string value = key.write();
    if (value.empty()) continue;
    std::vector<std::string> names;
    for (size_t i = 0; i <= key.path.size();) {
      const size_t end = std::min(key.path.find('.', i), key.path.size());
      names.push_back(key.path.substr(i, end - i));
      i = end + 1;
    }
    size_t common = 0;
    while (common < open.size() && common + 1 < names.size() && open[common] == names[common]) ++common;
    open.resize(common);
    for (; open.size() + 1 < names.size(); open.push_back(names[open.size()])) out += std::string(2 * open.size(), ' ') + names[open.size()] + ":\n";
    out += std::string(2 * open.size(), ' ') + names.back() + ": " + value + "\n";
  }
  return out;
}

}  // namespace megaslide
