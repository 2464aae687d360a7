#include "eval/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/utf8.h"
#include "data/caption.h"
#include "data/csv.h"
#include "io/json.h"

namespace megaslide {
namespace {

using Json = nlohmann::json;

std::string lower_extension(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos || path.find('/', dot) != std::string::npos) return "";
  std::string e = path.substr(dot);
  std::transform(e.begin(), e.end(), e.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return e;
}

std::string standard_key(const std::string& key) {
  static const std::map<std::string, std::string> kNames{
      {"video", "path"},     {"file", "path"},   {"video_path", "path"}, {"filename", "path"},
      {"caption", "prompt"}, {"text", "prompt"}, {"prompt_en", "prompt"}};
  const auto found = kNames.find(key);
  return found == kNames.end() ? key : found->second;
}

std::string text_of(const Json& v, const std::string& where) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_number_integer()) return std::to_string(v.get<int64_t>());
  if (!v.is_array()) throw Error(fmt::format("{}: expected a string", where));
  std::string joined;
  for (const Json& e : v) {
    if (!e.is_string()) throw Error(fmt::format("{}: expected strings", where));
    if (!joined.empty()) joined += '\n';
    joined += e.get<std::string>();
  }
  return joined;
}

void add_json_row(const Json& v, const std::string& where, std::vector<ManifestRow>& rows) {
  if (v.is_string()) {
    rows.push_back({{"path", v.get<std::string>()}});
    return;
  }
  if (!v.is_object()) throw Error(fmt::format("{}: expected a path or an object with \"path\"", where));
  ManifestRow row;
  for (const auto& [key, value] : v.items()) {
    const std::string name = standard_key(key);
    if (name == "path" || name == "prompt" || name == "index" || name == "reference" || name == "dimension" || name == "appearance_style") {
      row[name] = text_of(value, fmt::format("{}: {}", where, key));
    }
  }
  if (const auto list = v.find("video_list"); list != v.end() && list->is_array()) {
    for (const Json& path : *list) {
      ManifestRow one = row;
      one["path"] = text_of(path, where + ": video_list");
      rows.push_back(std::move(one));
    }
    return;
  }
  if (row.count("path") == 0) {
    throw Error(fmt::format("{}: has neither \"path\" nor \"video_list\"", where),
                "for a list of prompts use --prompts and name the folder with the videos");
  }
  rows.push_back(std::move(row));
}

std::vector<ManifestRow> parse_json_list(const std::string& text, const std::string& path) {
  const Json doc = parse_json(text, path);
  if (!doc.is_array())
    throw Error(fmt::format("{}: expected a list of videos", path),
                "a manifest is a JSON list of paths or of objects with \"path\"");
  std::vector<ManifestRow> rows;
  for (size_t i = 0; i < doc.size(); ++i) add_json_row(doc[i], fmt::format("{}: entry {}", path, i), rows);
  return rows;
}

// The lines of a text without a byte order mark and line ends; blank lines stay, as "".
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  size_t at = text.rfind("\xEF\xBB\xBF", 0) == 0 ? 3 : 0;
  while (at < text.size()) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

std::vector<ManifestRow> parse_json_lines(const std::string& text, const std::string& path) {
  std::vector<ManifestRow> rows;
  size_t number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    add_json_row(parse_json(line, where), where, rows);
  }
  return rows;
}

std::vector<ManifestRow> parse_csv_list(const std::string& bytes, const std::string& path) {
  const std::string text = decode_text(bytes).text;
  const std::vector<CsvRecord> table = parse_csv(text, guess_separator(text));
  if (table.empty()) throw Error(fmt::format("{}: the file is empty", path));
  std::vector<std::string> keys;
  for (const std::string& k : table[0].fields) keys.push_back(standard_key(k));
  if (std::find(keys.begin(), keys.end(), "path") == keys.end()) {
    std::string listed;
    for (const std::string& f : table[0].fields) listed += (listed.empty() ? "" : ", ") + quote_for_message(f);
    throw Error(fmt::format("{}: no column \"path\" among: {}", path, listed),
                "name the column with the videos path, video or file");
  }
  std::vector<ManifestRow> rows;
  for (size_t r = 1; r < table.size(); ++r) {
    const CsvRecord& record = table[r];
    if (!record.problem.empty()) throw Error(fmt::format("{}:{}: {}", path, record.line, record.problem));
    ManifestRow row;
    for (size_t c = 0; c < std::min(keys.size(), record.fields.size()); ++c) {
      if (!record.fields[c].empty()) row[keys[c]] = record.fields[c];
    }
    if (row.count("path") == 0) throw Error(fmt::format("{}:{}: this row has no path", path, record.line));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

bool is_manifest_name(const std::string& path) {
  constexpr std::array<std::string_view, 4> kAll{".json", ".jsonl", ".csv", ".txt"};
  return std::find(kAll.begin(), kAll.end(), lower_extension(path)) != kAll.end();
}

std::vector<ManifestRow> read_manifest(const std::string& path) { return parse_manifest_rows(read_file(path, kMaxJsonBytes), path); }

std::vector<ManifestRow> parse_manifest_rows(const std::string& text, const std::string& path) {
  const std::string e = lower_extension(path);
  if (e == ".json") return parse_json_list(text, path);
  if (e == ".jsonl") return parse_json_lines(text, path);
  if (e == ".csv") return parse_csv_list(text, path);
  std::vector<ManifestRow> rows;
  for (const std::string& line : lines_of(text)) {
    if (!line.empty()) rows.push_back({{"path", line}});
  }
  return rows;
}

}  // namespace megaslide
