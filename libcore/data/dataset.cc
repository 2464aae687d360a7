#include "data/dataset.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/unicode.h"
#include "data/caption.h"
#include "data/dataset_parts.h"
#include "io/video.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNoSuchFile = "no such file or folder";

std::string lower(std::string s) {
  for (char& c : s) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return s;
}

bool is_text_name(const std::string& path) { return lower(fs::path(path).extension().string()) == ".txt"; }
bool names_videos(const std::string& path) { return lower(fs::path(path).filename().string()).find("video") != std::string::npos; }
bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void read_pair(Dataset& d, const std::string& a, const std::string& b, const DatasetOptions& options) {
  if (names_videos(a) && !names_videos(b)) read_line_pairs(d, b, a, options);
  else read_line_pairs(d, a, b, options);
}

void read_one(Dataset& d, const std::string& path, const DatasetOptions& options) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (exists(path + "/prompts.txt") && exists(path + "/videos.txt")) return read_line_pairs(d, path + "/prompts.txt", path + "/videos.txt", options);
    return read_folder(d, path, options);
  }
  if (!exists(path)) throw Error(path + ": no such file or folder", "check the path of the dataset");
  const std::string extension = lower(fs::path(path).extension().string());
  if (extension == ".csv" || extension == ".tsv") return read_csv_file(d, path, options);
  if (extension == ".json") return read_json_file(d, path, options);
  if (extension == ".jsonl" || extension == ".ndjson") return read_jsonl_file(d, path, options);
  if (is_video_file_name(path) || is_image_file_name(path)) return read_video_argument(d, path, options);
  throw usage_error(path + ": not a dataset",
                    is_text_name(path) ? "give both files: prompts.txt+videos.txt" : "give a folder, .csv, .json, .jsonl, prompts.txt+videos.txt, or a video");
}

}  // namespace

Dataset read_datasets(const std::vector<std::string>& arguments, const DatasetOptions& options) {
  Dataset all;
  for (size_t i = 0; i < arguments.size(); ++i) {
    Dataset d;
    const std::string& a = arguments[i];
    const size_t plus = a.find('+');
    if (!exists(a) && plus != std::string::npos) {
      read_pair(d, a.substr(0, plus), a.substr(plus + 1), options);
    } else if (is_text_name(a) && i + 1 < arguments.size() && is_text_name(arguments[i + 1])) {
      read_pair(d, a, arguments[i + 1], options);
      ++i;
    } else {
      read_one(d, a, options);
    }
    for (DatasetEntry& e : d.entries) {
      if (arguments.size() > 1 && e.place.empty()) e.path = a + (a.back() == '/' ? "" : "/") + e.path;  // tells datasets apart
      all.entries.push_back(std::move(e));
    }
    all.warnings.insert(all.warnings.end(), d.warnings.begin(), d.warnings.end());
  }
  return all;
}

std::string caption_problem(std::string& caption, const DatasetOptions& options) {
  const bool empty = caption.empty();
  caption = trim(caption);
  if (!caption.empty() || options.allow_empty_captions) return {};
  return empty ? "the caption is empty" : "the caption is blank: nothing but white space";
}

std::string file_problem(const std::string& file) {
  std::error_code failure;
  if (fs::exists(file, failure)) return {};
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(file, ignored)) ? "broken link" : kNoSuchFile;
}

std::string in_other_unicode_form(const std::string& file) {
  std::error_code ignored;
  fs::path found;
  for (const fs::path& part : fs::path(file)) {
    if (fs::exists(found / part, ignored)) {
      found /= part;
      continue;
    }
    std::string same;
    for (fs::directory_iterator it(found.empty() ? "." : found, ignored), end; it != end && same.empty(); it.increment(ignored))
      if (const std::string name = it->path().filename().string(); to_nfc(name) == to_nfc(part.string())) same = name;
    if (same.empty()) return {};
    found /= same;
  }
  return found.string();
}

std::string canonical_path(const std::string& file) {
  std::error_code failure;
  const fs::path p = fs::canonical(file, failure);
  return failure ? file : p.string();
}

const std::vector<std::string>& clip_names() {
  static const std::vector<std::string> names = {"video",    "video_path", "path",  "file",       "file_name", "filename", "media_path",
                                                 "file_path", "media",      "clip",  "image_path", "video_file", "image"};
  return names;
}
const std::vector<std::string>& caption_names() {
  static const std::vector<std::string> names = {"caption", "prompt", "text", "description", "captions", "cap", "prompts"};
  return names;
}

void TableRows::add(const TableRow& row) {
  DatasetEntry e;
  e.place = row.place;
  e.path = fs::path(row.path.value_or("")).lexically_normal().string();
  if (row.path) e.file = (fs::path(folder_) / *row.path).string();
  const auto drop = [&](const std::string& problem) {
    e.problem = problem;
    dataset_.entries.push_back(e);
  };
  if (!row.problem.empty()) return drop(row.problem);
  if (!row.path || row.path->empty()) return drop("names no clip");
  std::vector<std::string> notes;
  if (const std::string p = file_problem(e.file); !p.empty()) {
    const std::string other = p == kNoSuchFile ? in_other_unicode_form(e.file) : "";
    if (other.empty()) return drop(p);
    e.file = other;
    notes.push_back("the file's name is spelt in another Unicode form");
  }
  if (!row.caption_given && !options_.allow_empty_captions) return drop("no caption");
  auto& seen = seen_[canonical_path(e.file)];
  std::vector<std::string> captions = row.captions;
  if (captions.empty()) captions.emplace_back();
  for (const std::string& c : captions) {
    e.caption = c;
    e.notes = notes;
    if (e.caption.find('\0') != std::string::npos) {
      std::erase(e.caption, '\0');
      e.notes.push_back("NUL characters removed from the caption");
    }
    e.problem = caption_problem(e.caption, options_);
    if (e.problem.empty()) {
      const auto [same, fresh] = seen.emplace(e.caption, row.place);
      if (!fresh) e.problem = "repeats " + same->second;
      else if (seen.size() > 1 && captions.size() == 1)
        e.notes.push_back("the same clip with another caption than before; both are used");
    }
    dataset_.entries.push_back(e);
  }
}

}  // namespace megaslide
