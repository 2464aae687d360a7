// What the dataset readers share.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace megaslide {

// One row of a table, whatever its syntax.
struct TableRow {
  std::string place;                    // "FILE:LINE"
  std::optional<std::string> path;      // as written
  std::vector<std::string> captions;    // several: the clip is used with each
  bool caption_given = false;           // false: absent or null
  std::string problem;                  // a row that cannot be read
};

// The rows of a table from its text in UTF-8. `path` names it in messages; no file is looked at. Usage Errors for a CSV
// without columns for clip and caption, Errors for JSON that is none.
std::vector<TableRow> parse_csv_rows(const std::string& text, const std::string& path);
std::vector<TableRow> parse_json_rows(const std::string& text, const std::string& path);
std::vector<TableRow> parse_jsonl_rows(const std::string& text, const std::string& path);
// Line i of each; blank lines at the ends do not count.
std::vector<TableRow> pair_lines(const std::string& captions, const std::string& clips, const std::string& captions_path, const std::string& clips_path);

class TableRows {
 public:
  TableRows(Dataset& dataset, std::string folder, const DatasetOptions& options)
      : dataset_(dataset), folder_(std::move(folder)), options_(options) {}
  void add(const TableRow& row);
  void add(const std::vector<TableRow>& rows) {
    for (const TableRow& row : rows) add(row);
  }

 private:
  Dataset& dataset_;
  std::string folder_;
  DatasetOptions options_;
  std::map<std::string, std::map<std::string, std::string>> seen_;  // canonical file, caption -> place
};

// "no caption", "blank caption", ... or "" when the caption can be used; trims `caption`.
std::string caption_problem(std::string& caption, const DatasetOptions& options);
// "broken link", "no such file or folder" or "".
std::string file_problem(const std::string& file);
// The file whose name differs only in its Unicode form (macOS stores names decomposed, tables are typed composed); "" where
// there is none.
std::string in_other_unicode_form(const std::string& file);
std::string canonical_path(const std::string& file);  // `file` itself where it cannot be resolved

// Names of the columns or keys in which people put clips and captions, best first.
const std::vector<std::string>& clip_names();
const std::vector<std::string>& caption_names();

void read_folder(Dataset& dataset, const std::string& path, const DatasetOptions& options);
void read_video_argument(Dataset& dataset, const std::string& path, const DatasetOptions& options);
void read_csv_file(Dataset& dataset, const std::string& path, const DatasetOptions& options);
void read_json_file(Dataset& dataset, const std::string& path, const DatasetOptions& options);
void read_jsonl_file(Dataset& dataset, const std::string& path, const DatasetOptions& options);
void read_line_pairs(Dataset& dataset, const std::string& prompts, const std::string& videos, const DatasetOptions& options);

}  // namespace megaslide
