#include "io/json.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json_cursor.h"
#include "base/library_versions.h"
#include "base/utf8.h"

namespace megaslide {
namespace {
using nlohmann::json;

json read_value(JsonCursor& cursor);

json read_object(JsonCursor& cursor) {
  json out = json::object();
  bool first = true;
  std::string key;
  cursor.begin_object();
  while (cursor.next_key(first, key)) {
    if (out.contains(key)) cursor.duplicate_key(cursor.key_offset(), key);
    out[key] = read_value(cursor);
  }
  return out;
}

json read_array(JsonCursor& cursor) {
  json out = json::array();
  bool first = true;
  cursor.begin_array();
  while (cursor.next_element(first)) out.push_back(read_value(cursor));
  return out;
}

json read_number(JsonCursor& cursor) {
  const char c = cursor.peek();
  if (c >= '0' && c <= '9' && cursor.next_is_integer()) return cursor.u64("a value");
  const bool integer = cursor.next_is_integer();
  const double value = cursor.number("a value");
  // Negative integers are exact in a double down to -2^53; none of these documents holds others.
  if (integer && value >= -0x1p53) return static_cast<int64_t>(value);
  return value;
}

json read_value(JsonCursor& cursor) {
  switch (cursor.peek()) {
    case '{': return read_object(cursor);
    case '[': return read_array(cursor);
    case '"': return cursor.string("a value");
    case 't': case 'f': return cursor.boolean("a value");
    case 'n': cursor.null(); return nullptr;
    default: return read_number(cursor);
  }
}

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  JsonCursor cursor(text, source);
  json value = read_value(cursor);
  cursor.end();
  return value;
}

json read_json(const std::string& path, int64_t max_bytes) { return parse_json(read_file(path, max_bytes), path); }

std::string short_json(const json& value) {
  constexpr size_t kMost = 60;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMost) text.replace(kMost, std::string::npos, "…");
  return text;
}

JsonFields::JsonFields(const json& from, std::string source) : json_(from), source_(std::move(source)) {
  if (!json_.is_object()) problem(fmt::format("expected an object, found {}", json_.type_name()));
}

const json* JsonFields::find(const char* key) {
  known_.emplace_back(key);
  if (!json_.is_object()) return nullptr;
  const auto it = json_.find(key);
  return it == json_.end() ? nullptr : &*it;
}

const json* JsonFields::required(const char* key) {
  const json* value = find(key);
  if (!value && json_.is_object()) problem(fmt::format("{} is missing", key));
  return value;
}

void JsonFields::assign(const char* key, const json& from, int64_t& value) {
  if (from.is_number_unsigned() && from.get<uint64_t>() > uint64_t{INT64_MAX}) return problem(fmt::format("{} is out of range", key));
  if (!from.is_number_integer()) return problem(fmt::format("{}: expected an integer, found {}", key, from.type_name()));
  value = from.get<int64_t>();
}

void JsonFields::assign(const char* key, const json& from, double& value) {
  if (!from.is_number()) return problem(fmt::format("{}: expected a number, found {}", key, from.type_name()));
  value = from.get<double>();
}

const json* JsonFields::element(const char* key, size_t index, size_t count) {
  const json* list = index == 0 ? required(key) : find(key);
  if (!list) return nullptr;
  if (list->is_array() && list->size() == count) return &(*list)[index];
  if (index == 0) problem(fmt::format("{}: expected an array of {} values", key, count));
  return nullptr;
}

void JsonFields::read(const char* key, int64_t& value) {
  if (const json* j = required(key)) assign(key, *j, value);
}

void JsonFields::read(const char* key, uint64_t& value) {
  const json* j = required(key);
  if (!j) return;
  if (!j->is_number_unsigned()) return problem(fmt::format("{}: expected an integer >= 0, found {}", key, j->type_name()));
  value = j->get<uint64_t>();
}

void JsonFields::read(const char* key, double& value) {
  if (const json* j = required(key)) assign(key, *j, value);
}

void JsonFields::read(const char* key, bool& value) {
  const json* j = required(key);
  if (!j) return;
  if (!j->is_boolean()) return problem(fmt::format("{}: expected true or false, found {}", key, j->type_name()));
  value = j->get<bool>();
}

void JsonFields::read(const char* key, std::string& value) {
  const json* j = required(key);
  if (!j) return;
  if (!j->is_string()) return problem(fmt::format("{}: expected a string, found {}", key, j->type_name()));
  value = j->get<std::string>();
}

void JsonFields::read_choice(const char* key, size_t& value, const std::vector<std::string>& names) {
  std::string text;
  const size_t before = problems_.size();
  read(key, text);
  if (problems_.size() != before || !json_.is_object()) return;
  const auto it = std::find(names.begin(), names.end(), text);
  if (it != names.end()) {
    value = static_cast<size_t>(it - names.begin());
    return;
  }
  std::string list;
  for (const auto& n : names) list += (list.empty() ? "" : ", ") + n;
  problem(fmt::format("{}: expected one of {}, found {}", key, list, quote_for_message(text)));
}

const json& JsonFields::object(const char* key) {
  static const json empty = json::object();
  const json* j = required(key);
  if (j && j->is_object()) return *j;
  if (j) problem(fmt::format("{}: expected an object, found {}", key, j->type_name()));
  return empty;
}

const json& JsonFields::array(const char* key) {
  static const json empty = json::array();
  const json* j = required(key);
  if (j && j->is_array()) return *j;
  if (j) problem(fmt::format("{}: expected an array, found {}", key, j->type_name()));
  return empty;
}

std::vector<std::string> JsonFields::problems() {
  std::vector<std::string> all = problems_;
  if (!unknown_allowed_ && json_.is_object())
    for (const auto& [key, value] : json_.items())
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) all.push_back("unknown key " + quote_for_message(key));
  return all;
}

void JsonFields::finish() {
  const auto all = problems();
  if (all.empty()) return;
  std::string text;
  for (const auto& p : all) text += (text.empty() ? "" : "; ") + p;
  throw Error(source_ + ": " + text);
}

std::string version_of_json() {
  return fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
}

}  // namespace megaslide
