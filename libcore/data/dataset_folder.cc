// Folders: clips anywhere below, captions in NAME.txt beside them.
#include <algorithm>
#include <filesystem>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/caption.h"
#include "data/dataset_parts.h"
#include "io/video.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxCaptionBytes = 1 << 20;

struct Found {
  std::vector<fs::path> clips;     // relative
  std::set<std::string> captions;  // relative, .txt
  std::vector<std::string> warnings;
};

bool is_text_name(const std::string& name) { return name.size() > 4 && (name.ends_with(".txt") || name.ends_with(".TXT")); }
bool is_ignored(const std::string& name) { return name[0] == '.' || name == "Thumbs.db" || name == "desktop.ini"; }
bool is_clip_name(const std::string& name) { return is_video_file_name(name) || is_image_file_name(name); }

// Nothing but pictures, and a caption for the folder itself.
bool is_frame_folder(const fs::path& dir) {
  std::error_code ignored;
  if (!fs::exists(dir.string() + ".txt", ignored)) return false;
  for (const auto& e : fs::directory_iterator(dir, ignored)) {
    const std::string name = e.path().filename().string();
    if (!is_ignored(name) && !is_image_file_name(name)) return false;
  }
  return !frame_folder_pictures(dir.string()).empty();
}

class Walk {
 public:
  explicit Walk(fs::path root) : root_(std::move(root)) {}
  Found run() {
    visit("");
    return std::move(found_);
  }

 private:
  void visit(const fs::path& relative) {
    const fs::path dir = root_ / relative;
    if (!visited_.insert(canonical_path(dir.string())).second) {
      found_.warnings.push_back(relative.string() + ": a link back to a folder that was already read; not followed");
      return;
    }
    std::error_code failure;
    std::vector<std::string> names;
    for (fs::directory_iterator it(dir, failure), end; !failure && it != end; it.increment(failure)) names.push_back(it->path().filename().string());
    if (failure) {
      if (relative.empty()) throw Error(fmt::format("{}: {}", dir.string(), failure.message()), "check the folder's permissions");
      found_.warnings.push_back(fmt::format("{}: {}; skipped", relative.string(), failure.message()));
    }
    std::sort(names.begin(), names.end());
    // Links last, so that what they point to is found under its own name first.
    std::stable_partition(names.begin(), names.end(), [&](const std::string& n) {
      std::error_code ignored;
      return !fs::is_symlink(fs::symlink_status(dir / n, ignored));
    });
    for (const std::string& name : names)
      if (!is_ignored(name)) visit_entry(relative / name, name);
  }

  void visit_entry(const fs::path& relative, const std::string& name) {
    const fs::path full = root_ / relative;
    std::error_code failure;
    const fs::file_status status = fs::status(full, failure);
    if (fs::is_directory(status)) {
      if (is_frame_folder(full)) found_.clips.push_back(relative);
      else visit(relative);
    } else if (is_clip_name(name)) {
      found_.clips.push_back(relative);  // also broken links: they are reported as clips
    } else if (is_text_name(name) && fs::is_regular_file(status)) {
      found_.captions.insert(relative.string());
    }
  }

  fs::path root_;
  Found found_;
  std::set<std::string> visited_;
};

// The caption of a clip: the file beside it with .txt for its extension. `used`: what was looked at.
void find_caption(DatasetEntry& e, const fs::path& file, std::string& used, const DatasetOptions& options) {
  fs::path text = file;
  std::error_code ignored;
  if (!fs::is_directory(file, ignored)) text.replace_extension();
  used = text.string() + ".txt";
  if (!fs::exists(used, ignored) && fs::exists(text.string() + ".TXT", ignored)) used = text.string() + ".TXT";
  if (!fs::exists(used, ignored))
    if (const std::string other = in_other_unicode_form(used); !other.empty()) {
      e.notes.push_back("the caption's name is spelt in another Unicode form");
      used = other;
    }
  if (!fs::exists(used, ignored)) {
    if (!options.allow_empty_captions) e.problem = fmt::format("no caption: {} is missing", fs::path(used).filename().string());
    return;
  }
  try {
    DecodedText d = decode_text(read_file(used, kMaxCaptionBytes));
    e.caption = std::move(d.text);
    for (const std::string& n : d.notes) e.notes.push_back(fmt::format("{}: {}", fs::path(used).filename().string(), n));
    e.problem = caption_problem(e.caption, options);
  } catch (const Error& failure) {
    e.problem = failure.message();
  }
}

}  // namespace

void read_folder(Dataset& dataset, const std::string& path, const DatasetOptions& options) {
  const fs::path root = path;
  Found found = Walk(root).run();
  std::map<std::string, std::string> by_file;           // canonical -> path in the report
  std::map<std::string, std::vector<size_t>> by_caption;  // caption file -> entries
  std::vector<DatasetEntry> entries;
  for (const fs::path& clip : found.clips) {
    DatasetEntry e;
    e.path = clip.string();
    e.file = (root / clip).string();
    e.problem = file_problem(e.file);
    std::string caption_file;
    if (e.problem.empty()) {
      const auto [same, fresh] = by_file.emplace(canonical_path(e.file), e.path);
      if (!fresh) e.problem = "the same file as " + same->second;
    }
    if (e.problem.empty()) find_caption(e, root / clip, caption_file, options);
    else caption_file = (root / fs::path(clip).replace_extension()).string() + ".txt";
    by_caption[caption_file].push_back(entries.size());
    entries.push_back(std::move(e));
  }
  for (const auto& [file, users] : by_caption) {
    if (users.size() < 2) continue;
    for (const size_t i : users) {
      std::string others;
      for (const size_t j : users)
        if (j != i) others += (others.empty() ? "" : ", ") + entries[j].path;
      if (entries[i].problem.empty()) entries[i].notes.push_back("shares its caption file with " + others);
    }
  }
  std::sort(entries.begin(), entries.end(), [](const DatasetEntry& a, const DatasetEntry& b) { return natural_less(a.path, b.path); });
  for (const std::string& c : found.captions)
    if (by_caption.count((root / c).string()) == 0) dataset.warnings.push_back(c + ": a caption without a clip");
  dataset.warnings.insert(dataset.warnings.end(), found.warnings.begin(), found.warnings.end());
  dataset.entries.insert(dataset.entries.end(), std::make_move_iterator(entries.begin()), std::make_move_iterator(entries.end()));
}

void read_video_argument(Dataset& dataset, const std::string& path, const DatasetOptions& options) {
  DatasetEntry e;
  e.path = fs::path(path).filename().string();
  e.file = path;
  std::string used;
  find_caption(e, path, used, options);
  dataset.entries.push_back(std::move(e));
}

}  // namespace megaslide
