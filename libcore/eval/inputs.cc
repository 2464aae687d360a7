#include "eval/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/unicode.h"
#include "base/utf8.h"
#include "data/caption.h"
#include "eval/manifest.h"
#include "io/video.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
constexpr int kMaxDepth = 8;

bool is_folder(const std::string& path) {
  std::error_code ec;
  return fs::is_directory(path, ec);
}

// File name without folder; without extension where it is a file.
std::string stem_of(const std::string& path) {
  const fs::path p = fs::path(path).lexically_normal();
  const fs::path last = p.has_filename() ? p.filename() : p.parent_path().filename();
  const std::string name = last.string();
  const size_t dot = name.rfind('.');
  return dot == std::string::npos || dot == 0 || is_folder(path) ? name : name.substr(0, dot);
}

VideoItem item_of(const std::string& path) {
  VideoItem item;
  item.path = path;
  item.name = to_nfc(stem_of(path));
  VideoName n = parse_video_name(item.name);
  item.prompt = std::move(n.prompt), item.index = n.index;
  return item;
}

// The text beside a clip, as training sets have it: clip.mp4, clip.txt.
std::string caption_of(const std::string& video) {
  const std::string path = fs::path(video).replace_extension(".txt").string();
  constexpr int64_t kMost = int64_t{1} << 20;
  std::error_code ec;
  if (!fs::is_regular_file(path, ec) || static_cast<int64_t>(fs::file_size(path, ec)) > kMost) return "";
  return to_nfc(trim(decode_text(read_file(path, kMost)).text));
}

void collect_folder(const std::string& folder, int depth, InputSet& out) {
  if (!frame_folder_pictures(folder).empty()) {
    out.items.push_back(item_of(folder));
    return;
  }
  std::vector<std::pair<std::string, bool>> entries;  // name, is a folder
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (name.empty() || name[0] == '.') continue;
    std::error_code unreadable;
    entries.emplace_back(std::move(name), it->is_directory(unreadable) && !(depth > 0 && it->is_symlink(unreadable)));
  }
  if (ec) throw system_error("list", folder, ec.value());
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return natural_less(a.first, b.first); });
  for (const auto& [name, is_dir] : entries) {
    const std::string path = (fs::path(folder) / name).lexically_normal().string();
    if (is_dir) {
      if (depth < kMaxDepth) collect_folder(path, depth + 1, out);
    } else if (is_video_file_name(name)) {
      out.items.push_back(item_of(path));
    } else {
      out.ignored.push_back(path);
    }
  }
}

int64_t parse_index(const std::string& text, const std::string& where) {
  int64_t v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || end != text.data() + text.size() || v < 0)
    throw Error(fmt::format("{}: index {} is no whole number", where, quote_for_message(text)));
  return v;
}

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  std::string name;
  for (char c : text + "\n") {
    if (c != '\n' && c != ',' && c != ' ') {
      name += c;
    } else if (!name.empty()) {
      names.push_back(std::move(name));
      name.clear();
    }
  }
  return names;
}

void collect_manifest(const std::string& path, InputSet& out) {
  const fs::path base = fs::path(path).parent_path();
  const auto resolve = [&](const std::string& name) {
    std::error_code ec;
    const fs::path beside = base / name;
    return fs::exists(beside, ec) || !fs::exists(name, ec) ? beside.string() : name;
  };
  const size_t before = out.items.size();
  for (const ManifestRow& row : read_manifest(path)) {
    VideoItem item = item_of(resolve(row.at("path")));
    const auto get = [&](const char* key) {
      const auto found = row.find(key);
      return found == row.end() ? std::string() : found->second;
    };
    if (const std::string p = get("prompt"); !p.empty()) item.prompt = to_nfc(p), item.stated_prompt = true;
    if (const std::string i = get("index"); !i.empty()) item.index = parse_index(i, path);
    if (const std::string r = get("reference"); !r.empty()) item.reference = resolve(r);
    item.dimensions = split_names(get("dimension"));
    item.style = get("appearance_style");
    out.items.push_back(std::move(item));
  }
  if (out.items.size() == before) throw Error(fmt::format("{}: names no video", path));
}

}  // namespace

VideoName parse_video_name(const std::string& stem) {
  const size_t dash = stem.rfind('-');
  if (dash == std::string::npos || dash == 0 || dash + 1 == stem.size() || stem.size() - dash > 10)
    return {stem, std::nullopt};
  int64_t index = 0;
  for (size_t i = dash + 1; i < stem.size(); ++i) {
    if (stem[i] < '0' || stem[i] > '9') return {stem, std::nullopt};
    index = index * 10 + (stem[i] - '0');
  }
  return {stem.substr(0, dash), index};
}

InputSet collect_inputs(const std::vector<std::string>& inputs) {
  InputSet out;
  for (const std::string& input : inputs) {
    if (is_folder(input)) {
      const size_t before = out.items.size();
      collect_folder(input, 0, out);
      if (out.items.size() == before)
        out.warnings.push_back(fmt::format("{}: no videos and no folders of pictures in it", input));
    } else if (is_manifest_name(input)) {
      collect_manifest(input, out);
    } else {
      out.items.push_back(item_of(input));
    }
  }
  std::map<std::string, size_t> seen;
  std::vector<VideoItem> unique;
  for (VideoItem& item : out.items) {
    const std::string key = fs::path(item.path).lexically_normal().string();
    if (seen.emplace(key, unique.size()).second) {
      unique.push_back(std::move(item));
    } else {
      out.warnings.push_back(fmt::format("{}: named twice, counted once", item.path));
    }
  }
  out.items = std::move(unique);
  return out;
}

std::vector<std::string> assign_references(std::vector<VideoItem>& items, const std::string& reference) {
  std::vector<std::string> without;
  if (!is_folder(reference) || !frame_folder_pictures(reference).empty()) {
    std::error_code ec;
    if (!fs::exists(reference, ec)) throw usage_error(fmt::format("--reference {}: no such file or folder", reference));
    for (VideoItem& item : items) {
      if (item.reference.empty()) item.reference = reference;
    }
    return without;
  }
  InputSet set = collect_inputs({reference});
  std::map<std::string, std::string> by_name;
  for (const VideoItem& r : set.items) by_name.emplace(r.name, r.path);
  for (const VideoItem& r : set.items) {
    if (const std::string caption = caption_of(r.path); !caption.empty()) by_name.emplace(caption, r.path);
  }
  for (VideoItem& item : items) {
    if (!item.reference.empty()) continue;
    // "PROMPT-0" also finds PROMPT, by name or by caption: samples against the one clip they are made after.
    auto found = by_name.find(item.name);
    if (found == by_name.end()) found = by_name.find(item.prompt);
    if (found != by_name.end()) {
      item.reference = found->second;
    } else {
      without.push_back(item.path);
    }
  }
  return without;
}

}  // namespace megaslide
