// Checkpoints of one or many files (spec wan.md F.5).
#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json_cursor.h"
#include "base/log.h"
#include "base/utf8.h"
#include "config/nearest.h"
#include "io/foreign_file.h"
#include "io/safetensors.h"
#include "io/shard_index.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxIndexBytes = 200'000'000;

void check_file_name(const JsonCursor& cursor, size_t at, const std::string& name) {
  const bool plain = !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain)
    cursor.fail(at, fmt::format("weight_map: {} is not a plain file name: shards must lie beside their index", quote_for_message(name)));
}

void parse_weight_map(JsonCursor& cursor, ShardIndex& index) {
  bool first = true;
  std::string tensor;
  cursor.begin_object();
  while (cursor.next_key(first, tensor)) {
    if (index.files.count(tensor)) cursor.duplicate_key(cursor.key_offset(), tensor);
    cursor.peek();
    const size_t at = cursor.offset();
    std::string file = cursor.string("a file name in weight_map");
    check_file_name(cursor, at, file);
    index.files.emplace(tensor, std::move(file));
  }
}

// {"metadata": {"total_size": n}}; anything else in it, and other types, mean nothing to us.
void parse_index_metadata(JsonCursor& cursor, ShardIndex& index) {
  if (cursor.peek() != '{') return cursor.skip_value();
  bool first = true;
  std::string key;
  cursor.begin_object();
  while (cursor.next_key(first, key)) {
    const char c = cursor.peek();
    if (key == "total_size" && c >= '0' && c <= '9') index.total_size = cursor.number("total_size");
    else cursor.skip_value();
  }
}

}  // namespace

ShardIndex read_shard_index(const std::string& path) { return parse_shard_index(read_file(path, kMaxIndexBytes), path); }

ShardIndex parse_shard_index(std::string_view text, const std::string& path) {
  JsonCursor cursor(text, path);
  ShardIndex index;
  bool first = true, mapped = false;
  std::string key;
  cursor.begin_object();
  while (cursor.next_key(first, key)) {
    if (key == "weight_map") {
      if (mapped) cursor.duplicate_key(cursor.key_offset(), key);
      mapped = true;
      parse_weight_map(cursor, index);
    } else if (key == "metadata") {
      parse_index_metadata(cursor, index);
    } else {
      cursor.skip_value();
    }
  }
  cursor.end();
  if (index.files.empty())
    throw Error(fmt::format("{}: {}", path, mapped ? "its weight_map is empty" : "it has no weight_map"),
                "an index maps each tensor to the file that holds it: use the one that came with the shards");
  return index;
}

namespace {

// The index or the single file in a folder: diffusers' names first, then transformers', then the only one there is.
std::string choose_in_folder(const std::string& folder) {
  constexpr std::string_view kIndex = ".safetensors.index.json", kFile = ".safetensors";
  std::vector<std::string> indexes, files;
  std::string others;  // weights in a format that is not read
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kIndex)) indexes.push_back(name);
    else if (name.ends_with(kFile)) files.push_back(name);
    else if (!identify_foreign_file(name, " ").what.empty()) others = name;
  }
  if (ec) throw system_error("read folder", folder, ec.value());
  std::sort(indexes.begin(), indexes.end());
  std::sort(files.begin(), files.end());
  for (const std::string_view base : {"diffusion_pytorch_model", "model"})
    for (const auto& [names, suffix] : {std::pair(&indexes, kIndex), std::pair(&files, kFile)})
      if (std::find(names->begin(), names->end(), std::string(base) + std::string(suffix)) != names->end())
        return folder + "/" + std::string(base) + std::string(suffix);
  if (indexes.size() == 1) return folder + "/" + indexes[0];
  if (indexes.empty() && files.size() == 1) return folder + "/" + files[0];
  if (indexes.empty() && files.empty()) {
    const ForeignFile foreign = identify_foreign_file(others, " ");
    if (!foreign.what.empty()) throw Error(fmt::format("{}: holds no .safetensors file, but {}", folder, others), foreign.remedy);
    throw Error(fmt::format("{}: holds no .safetensors file and no index of shards", folder), "give the folder or file with the weights");
  }
  const auto& several = indexes.empty() ? files : indexes;
  std::string list;
  for (size_t i = 0; i < several.size() && i < 8; ++i) list += (i ? ", " : "") + several[i];
  if (several.size() > 8) list += ", …";
  throw Error(fmt::format("{}: holds several checkpoints ({})", folder, list),
              several[0].find("-of-") != std::string::npos ? "their index (*.safetensors.index.json) is missing: fetch it too"
                                                           : "name the one to read");
}

}  // namespace

SafetensorsSource SafetensorsSource::open(const std::string& given) {
  std::error_code ec;
  const std::string path = fs::is_directory(given, ec) ? choose_in_folder(given) : given;
  SafetensorsSource source;
  if (!path.ends_with(".json")) {
    source.files_.push_back(SafetensorsFile::open(path));
    for (const TensorInfo& t : source.files_[0].tensors()) source.tensors_[t.name] = {t, 0};
    return source;
  }
  const ShardIndex index = read_shard_index(path);
  source.index_ = path;
  std::map<std::string, size_t> opened;
  double total = 0;
  for (const auto& [tensor, name] : index.files) {
    const auto [it, fresh] = opened.emplace(name, source.files_.size());
    if (fresh) {
      const std::string shard = parent_directory(path) + "/" + name;
      if (!fs::exists(shard, ec)) throw Error(fmt::format("{}: the shard {} is missing", path, name), "fetch all shards of the checkpoint");
      source.files_.push_back(SafetensorsFile::open(shard));
    }
    const TensorInfo* info = source.files_[it->second].find(tensor);
    if (!info)
      throw Error(fmt::format("{}: maps tensor {} to {}, which does not hold it", path, quote_for_message(tensor), name),
                  "index and shards do not belong together: fetch both again");
    source.tensors_[tensor] = {*info, it->second};
    total += static_cast<double>(info->end - info->begin);
  }
  for (size_t f = 0; f < source.files_.size(); ++f)
    for (const TensorInfo& t : source.files_[f].tensors()) {
      const auto it = source.tensors_.find(t.name);
      if (it == source.tensors_.end() || it->second.file != f)
        source.warnings.push_back(fmt::format("{}: tensor {} is not mapped there by the index and is ignored",
                                              source.files_[f].path(), quote_for_message(t.name)));
    }
  if (index.total_size && *index.total_size != total)
    source.warnings.push_back(fmt::format("{}: total_size is {:.0f}, the tensors have {:.0f} bytes", path, *index.total_size, total));
  for (const std::string& w : source.warnings) log_warning("{}", w);
  return source;
}

TensorView SafetensorsSource::view(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) return files_[it->second.file].view(it->second.info);
  std::vector<std::string> names;
  for (const auto& [n, entry] : tensors_) names.push_back(n);
  const std::string near = nearest_name(name, names);
  throw Error(fmt::format("{}: holds no tensor {}{}", files_[0].path(), quote_for_message(name),
                          near.empty() ? "" : "; did you mean " + quote_for_message(near) + "?"));
}

void SafetensorsSource::read_ahead(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) files_[it->second.file].read_ahead(it->second.info);
}

void SafetensorsSource::drop_pages(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) files_[it->second.file].drop_pages(it->second.info);
}

}  // namespace megaslide
