// A configuration as a table of keys: each with its path, what it takes, and how it is read and written. One table
// serves the reader, `--set`, the writer, the digest and the test that compares the keys with the man page.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/yaml.h"

namespace megaslide {

struct Problem {
  const YamlNode* node;  // where
  std::string text;      // "expected …, got …"
};
using Problems = std::vector<Problem>;

struct Key {
  std::string path;                                         // "train.seed"
  std::function<void(const YamlNode&, Problems&)> read;     // leaves the value alone when it finds a problem
  std::function<std::string()> write;                       // YAML flow text; "" when an optional value is not set
  bool optional = false;                                    // null unsets it
  bool in_digest = true;                                    // changes what the run computes
};

struct NumberRange {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool above_low = false;  // low itself is out
  bool contains(double x) const { return (above_low ? x > low : x >= low) && x <= high; }
  std::string describe() const;  // "a number > 0 and <= 1"
};
inline NumberRange between(double low, double high) { return {low, high, false}; }
inline NumberRange above(double low, double high = std::numeric_limits<double>::infinity()) { return {low, high, true}; }

// Binds keys to variables, which must outlive the schema. Each call returns the key for further settings.
class Schema {
 public:
  Key& text(const std::string& path, std::string& v, size_t longest = 4096);
  Key& boolean(const std::string& path, bool& v);
  Key& integer(const std::string& path, int64_t& v, int64_t low, int64_t high);
  Key& integer(const std::string& path, std::optional<int64_t>& v, int64_t low, int64_t high);
  Key& number(const std::string& path, double& v, NumberRange range);
  Key& number(const std::string& path, std::optional<double>& v, NumberRange range);
  Key& bytes(const std::string& path, int64_t& v, int64_t low = 0);
  Key& rate(const std::string& path, double& v, const std::string& unit, NumberRange range);  // unit "B" or "FLOP"
  Key& seconds(const std::string& path, double& v, NumberRange range);
  Key& integers(const std::string& path, std::array<int64_t, 3>& v, int64_t low, int64_t high);
  Key& integers(const std::string& path, std::optional<std::array<int64_t, 3>>& v, int64_t low, int64_t high);
  Key& integers(const std::string& path, std::vector<int64_t>& v, int64_t low, int64_t high);  // a list of one or more, or one number
  Key& numbers(const std::string& path, std::array<double, 3>& v, NumberRange range);
  Key& numbers(const std::string& path, std::optional<std::array<double, 3>>& v, NumberRange range);
  Key& numbers(const std::string& path, std::array<double, 2>& v, NumberRange range);
  Key& texts(const std::string& path, std::vector<std::string>& v);  // a list, or one text
  Key& paths(const std::string& path, std::vector<std::string>& v);  // the same, but one is written without brackets
  Key& size(const std::string& path, int64_t& width, int64_t& height, bool optional);  // "WxH"; 0 0 when not set
  // Words and their values, in the order messages list them.
  template <class E>
  using Words = std::vector<std::pair<std::string, E>>;
  template <class E>
  Key& choice(const std::string& path, E& v, const Words<E>& words);
  template <class E>
  Key& choice(const std::string& path, std::optional<E>& v, const Words<E>& words);
  template <class E>
  Key& choices(const std::string& path, std::vector<E>& v, const Words<E>& words);
  // A list of maps; `bind` makes the schema of one.
  template <class T>
  Key& records(const std::string& path, std::vector<T>& v, Schema (*bind)(T&));
  // auto, off, or an integer: kAuto, kOff or the value.
  Key& automatic(const std::string& path, int64_t& v, int64_t high);
  static constexpr int64_t kAuto = -1, kOff = 0;

  Key& add(Key key);
  const std::vector<Key>& keys() const { return keys_; }
  const Key* find(const std::string& path) const;
  bool is_section(const std::string& path) const;
  std::vector<std::string> names_in(const std::string& section) const;  // children of "" or "train"

 private:
  std::vector<Key> keys_;
};

// Index of the word, or nullopt with a problem that lists them.
std::optional<size_t> read_word(const YamlNode& node, const std::vector<std::string>& words, Problems& problems);

template <class E>
Key& Schema::choice(const std::string& path, E& v, const Words<E>& words) {
  std::vector<std::string> names;
  for (const auto& w : words) names.push_back(w.first);
  return add({path,
              [&v, words, names](const YamlNode& node, Problems& p) {
                if (const auto i = read_word(node, names, p)) v = words[*i].second;
              },
              [&v, words] {
                for (const auto& w : words)
                  if (w.second == v) return w.first;
                return std::string();
              }});
}

template <class E>
Key& Schema::choice(const std::string& path, std::optional<E>& v, const Words<E>& words) {
  std::vector<std::string> names;
  for (const auto& w : words) names.push_back(w.first);
  Key& key = add({path,
                  [&v, words, names](const YamlNode& node, Problems& p) {
                    if (node.kind == YamlNode::Kind::kNull) v.reset();
                    else if (const auto i = read_word(node, names, p)) v = words[*i].second;
                  },
                  [&v, words] {
                    for (const auto& w : words)
                      if (v && w.second == *v) return w.first;
                    return std::string();
                  }});
  key.optional = true;
  return key;
}

template <class E>
Key& Schema::choices(const std::string& path, std::vector<E>& v, const Words<E>& words) {
  std::vector<std::string> names;
  for (const auto& w : words) names.push_back(w.first);
  return add({path,
              [&v, words, names](const YamlNode& node, Problems& p) {
                std::vector<E> next;
                const size_t before = p.size();
                if (node.kind != YamlNode::Kind::kList) p.push_back({&node, "expected a list, got " + describe_node(node)});
                for (const YamlNode& item : node.items)
                  if (const auto i = read_word(item, names, p)) next.push_back(words[*i].second);
                if (p.size() == before) v = std::move(next);
              },
              [&v, words] {
                std::string s;
                for (const E& e : v)
                  for (const auto& w : words)
                    if (w.second == e) s += (s.empty() ? "" : ", ") + w.first;
                return s.empty() ? s : "[" + s + "]";
              }});
}

// A map into the schema's variables; findings name the key within it. And back, in flow form.
void read_record(const YamlNode& node, const Schema& schema, Problems& problems);
std::string write_record(const Schema& schema);

template <class T>
Key& Schema::records(const std::string& path, std::vector<T>& v, Schema (*bind)(T&)) {
  return add({path,
              [&v, bind](const YamlNode& node, Problems& p) {
                std::vector<T> next;
                const size_t before = p.size();
                if (node.kind != YamlNode::Kind::kList) p.push_back({&node, "expected a list of maps, got " + describe_node(node)});
                for (const YamlNode& item : node.items) read_record(item, bind(next.emplace_back()), p);
                if (p.size() == before) v = std::move(next);
              },
              [&v, bind] {
                std::string s;
                for (T& item : v) s += (s.empty() ? "" : ", ") + write_record(bind(item));
                return s.empty() ? s : "[" + s + "]";
              }});
}

// All that is wrong in one configuration, with the place of each.
class ConfigErrors {
 public:
  explicit ConfigErrors(std::string file) : file_(std::move(file)) {}
  const std::string& file() const { return file_; }
  void add(int line, int column, const std::string& text);     // in the file
  void add(const std::string& place, const std::string& text);  // elsewhere: "--set a.b=c"
  bool empty() const { return lines_.empty(); }
  // A usage Error with one line a finding, in the order of the file. `manual` names the page to read.
  void throw_if_any(const std::string& manual);

 private:
  struct Line {
    int line, column;
    std::string text;
  };
  std::string file_;
  std::vector<Line> lines_;
};

// Where each key was set, for findings about several keys at once.
class Places {
 public:
  void note(const std::string& path, int line, int column) { places_[path] = {line, column, {}}; }
  void note(const std::string& path, const std::string& set) { places_[path] = {0, 0, set}; }
  // Reports "path: text" where `path` was set, or at its nearest section, or at the file's first line.
  void report(ConfigErrors& errors, const std::string& path, const std::string& text) const;

 private:
  struct Place {
    int line, column;
    std::string set;
  };
  std::map<std::string, Place> places_;
};

// Reads the file's tree into the schema's variables; unknown keys get the nearest name.
void read_tree(const YamlNode& root, const Schema& schema, ConfigErrors& errors, Places& places);
// Applies "a.b=c"; the place of its findings is "--set a.b=c".
void apply_set(const std::string& assignment, const Schema& schema, ConfigErrors& errors, Places& places);

// YAML with one section a prefix, in schema order; unset optional values are left out.
std::string write_tree(const Schema& schema, const std::string& heading);

}  // namespace megaslide
