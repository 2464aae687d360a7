// Tables: CSV, JSON, JSON Lines, and two files line by line.
#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json_cursor.h"
#include "base/utf8.h"
#include "config/nearest.h"
#include "data/caption.h"
#include "data/csv.h"
#include "data/dataset_parts.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }
std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

std::string read_table(Dataset& dataset, const std::string& path) {
  DecodedText d = decode_text(read_file(path));
  for (const std::string& n : d.notes) dataset.warnings.push_back(fmt::format("{}: {}", name_of(path), n));
  return std::move(d.text);
}

std::string lower(std::string s) {
  for (char& c : s) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return s;
}

// The first of `names` that the header has; the header's size where there is none.
size_t find_column(const std::vector<std::string>& header, const std::vector<std::string>& names) {
  for (const std::string& n : names)
    for (size_t i = 0; i < header.size(); ++i)
      if (lower(trim(header[i])) == n) return i;
  return header.size();
}

[[noreturn]] void no_column(const std::string& path, const std::vector<std::string>& header, const std::vector<std::string>& names, const char* what) {
  std::string hint, listed;
  for (const std::string& h : header) {
    listed += (listed.empty() ? "" : ", ") + quote_for_message(trim(h));
    if (const std::string near = nearest_name(lower(trim(h)), names); hint.empty() && !near.empty())
      hint = fmt::format("; did you mean \"{}\" for {}?", near, quote_for_message(trim(h)));
  }
  throw usage_error(fmt::format("{}:1: no {} column among {}{}", path, what, listed, hint), fmt::format("name it \"{}\" or \"{}\"", names[0], names[1]));
}

bool contains(const std::vector<std::string>& names, const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); }

// One row object; keys we do not know are skipped. Fills `row` as far as it gets before a syntax error is thrown.
void read_row_object(JsonCursor& c, TableRow& row) {
  bool first = true;
  std::string key;
  c.begin_object();
  while (c.next_key(first, key)) {
    const std::string name = lower(key);
    if (!row.path && contains(clip_names(), name) && c.peek() == '"') {
      row.path = c.string("clip");
    } else if (!row.caption_given && contains(caption_names(), name)) {
      if (c.peek() == '"') {
        row.captions.push_back(c.string("caption"));
        row.caption_given = true;
      } else if (c.peek() == '[') {
        bool first_element = true;
        c.begin_array();
        while (c.next_element(first_element)) row.captions.push_back(c.string("caption"));
        row.caption_given = !row.captions.empty();
      } else if (!c.null()) {
        c.fail(c.offset(), fmt::format("{}: expected a text or a list of texts", key));
      }
    } else {
      c.skip_value();
    }
  }
}

// Lines of ascending offsets, in one pass over the text.
class LineCounter {
 public:
  explicit LineCounter(std::string_view text) : text_(text) {}
  size_t at(size_t offset) {
    for (; at_ < offset; ++at_) line_ += text_[at_] == '\n';
    return line_;
  }

 private:
  std::string_view text_;
  size_t at_ = 0, line_ = 1;
};

void read_row_array(JsonCursor& c, LineCounter& lines, const std::string& name, std::vector<TableRow>& rows) {
  bool first = true;
  c.begin_array();
  while (c.next_element(first)) {
    c.peek();
    TableRow row;
    row.place = fmt::format("{}:{}", name, lines.at(c.offset()));
    if (c.peek() == '{') {
      read_row_object(c, row);
    } else {
      row.problem = "expected an object with a clip and a caption";
      c.skip_value();
    }
    rows.push_back(std::move(row));
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace

std::vector<TableRow> parse_csv_rows(const std::string& text, const std::string& path) {
  const std::vector<CsvRecord> records = parse_csv(text, guess_separator(text));
  if (records.empty()) throw usage_error(path + ": empty", "the first line names the columns: video,caption");
  const std::vector<std::string>& header = records[0].fields;
  const size_t clip = find_column(header, clip_names()), caption = find_column(header, caption_names());
  if (clip == header.size()) no_column(path, header, clip_names(), "clip");
  if (caption == header.size()) no_column(path, header, caption_names(), "caption");
  std::vector<TableRow> rows;
  for (size_t i = 1; i < records.size(); ++i) {
    const CsvRecord& r = records[i];
    TableRow row;
    row.place = fmt::format("{}:{}", name_of(path), r.line);
    if (clip < r.fields.size()) row.path = trim(r.fields[clip]);
    if (!r.problem.empty()) row.problem = r.problem;
    else if (r.fields.size() != header.size()) row.problem = fmt::format("{} field{} where the header has {}", r.fields.size(), r.fields.size() == 1 ? "" : "s", header.size());
    if (caption < r.fields.size()) row.captions.push_back(r.fields[caption]);
    row.caption_given = true;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<TableRow> parse_json_rows(const std::string& text, const std::string& path) {
  JsonCursor c(text, path);
  LineCounter lines(text);
  std::vector<TableRow> rows;
  const std::string name = name_of(path);
  if (c.peek() == '[') {
    read_row_array(c, lines, name, rows);
  } else {
    bool first = true;
    std::string key;
    c.begin_object();
    while (c.next_key(first, key)) {
      TableRow row;
      const char kind = c.peek();
      row.place = fmt::format("{}:{}", name, lines.at(c.offset()));
      if (kind == '[') {  // {"clips": [...]}
        read_row_array(c, lines, name, rows);
        continue;
      }
      if (kind == '"') {
        row.captions.push_back(c.string("caption"));
        row.caption_given = true;
      } else if (kind == '{') {
        read_row_object(c, row);
      } else {
        c.skip_value();
        continue;
      }
      if (!row.path) row.path = key;
      rows.push_back(std::move(row));
    }
  }
  c.end();
  return rows;
}

std::vector<TableRow> parse_jsonl_rows(const std::string& text, const std::string& path) {
  const std::vector<std::string> lines = lines_of(text);
  std::vector<TableRow> rows;
  const std::string name = name_of(path);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (trim(lines[i]).empty()) continue;
    TableRow row;
    row.place = fmt::format("{}:{}", name, i + 1);
    try {
      JsonCursor c(lines[i], name);
      read_row_object(c, row);
      c.end();
    } catch (const Error& e) {
      // "NAME:1:COLUMN: text" of a one-line document.
      const std::string prefix = name + ":1:";
      row.problem = e.message().compare(0, prefix.size(), prefix) == 0 ? "column " + e.message().substr(prefix.size()) : e.message();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<TableRow> pair_lines(const std::string& captions_text, const std::string& clips_text, const std::string& captions_path, const std::string& clips_path) {
  std::vector<std::string> captions = lines_of(captions_text), clips = lines_of(clips_text);
  while (!clips.empty() && trim(clips.back()).empty()) clips.pop_back();
  while (captions.size() > clips.size() && trim(captions.back()).empty()) captions.pop_back();
  if (captions.size() != clips.size())
    throw usage_error(fmt::format("{} has {} lines, {} has {}: they are read line by line", captions_path, captions.size(), clips_path, clips.size()),
                      "give each clip its line; a blank line is an empty caption");
  std::vector<TableRow> rows;
  for (size_t i = 0; i < clips.size(); ++i) {
    TableRow row;
    row.place = fmt::format("{}:{}", name_of(clips_path), i + 1);
    row.path = trim(clips[i]);
    row.captions = {captions[i]};
    row.caption_given = true;
    rows.push_back(std::move(row));
  }
  return rows;
}

void read_csv_file(Dataset& dataset, const std::string& path, const DatasetOptions& options) {
  TableRows(dataset, folder_of(path), options).add(parse_csv_rows(read_table(dataset, path), path));
}

void read_json_file(Dataset& dataset, const std::string& path, const DatasetOptions& options) {
  TableRows(dataset, folder_of(path), options).add(parse_json_rows(read_table(dataset, path), path));
}

void read_jsonl_file(Dataset& dataset, const std::string& path, const DatasetOptions& options) {
  TableRows(dataset, folder_of(path), options).add(parse_jsonl_rows(read_table(dataset, path), path));
}

void read_line_pairs(Dataset& dataset, const std::string& prompts, const std::string& videos, const DatasetOptions& options) {
  const std::string captions = read_table(dataset, prompts);  // its warnings first
  TableRows(dataset, folder_of(videos), options).add(pair_lines(captions, read_table(dataset, videos), prompts, videos));
}

}  // namespace megaslide
