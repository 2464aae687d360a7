// Model directories and checkpoints back to the layouts of others.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "base/json_cursor.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "io/export_parts.h"
#include "io/parameter_reader.h"
#include "io/shard.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPiece = 1 << 18;  // elements at a time
constexpr const char* kBase = "diffusion_pytorch_model";
constexpr const char* kExportFolders[] = {"transformer", "transformer_2", "vae", "text_encoder", "tokenizer", "scheduler",
                                          "high_noise_model", "low_noise_model", "google", "google/umt5-xxl"};

struct Item {
  SafetensorsEntry entry;  // exported name and type
  std::string name;        // in the model directory
  int64_t part;
  int64_t bytes() const { return element_count(entry.shape) * dtype_bytes(entry.dtype); }
};

// Whether the tensor takes deformable attention away from plain neighbourhood attention.
bool takes_part(const SafetensorsFile& file, const WanTensor& t) {
  const auto is = [&](const char* end) { return t.name.ends_with(end); };
  if (!is("linear.weight") && !is("linear.bias") && !is("motion_gain") && !is("pooled_gate")) return false;
  const TensorView v = file.view(t.name);
  // Negative zero has a bit set; a false alarm there does no harm.
  return std::any_of(v.data, v.data + v.bytes(), [](std::byte b) { return b != std::byte{0}; });
}

DType export_type(DType stored, StoreDtype want) {
  return want == StoreDtype::kBf16 ? DType::kBF16 : want == StoreDtype::kFp32 ? DType::kF32 : stored;
}

std::vector<Item> list_items(const ModelDirectory& model, const ExportOptions& options) {
  std::vector<Item> items;
  bool dropped = false, moving = false;
  for (int64_t part = -1; part <= model.layers(); ++part) {
    const SafetensorsFile file = model.part(part);
    for (const WanTensor& t : wan_tensors(model.config(), part)) {
      if (t.original.empty()) {
        dropped = true;
        moving = moving || takes_part(file, t);
        continue;
      }
      const TensorInfo& info = *file.find(t.name);
      items.push_back({{options.prefix + (options.layout == WanLayout::kDiffusers ? t.name : t.original), export_type(info.dtype, options.dtype), t.shape}, t.name, part});
    }
  }
  if (moving)
    log_warning("deformable attention has learned offsets or a pooled branch, which the {} layout cannot hold: they are left out, and "
                "the exported model is not the same function",
                wan_layout_name(options.layout));
  else if (dropped)
    log_info("the offset nets are left out; their offsets are zero");
  return items;
}

// Consecutive items up to the limit; an item that exceeds it stands alone.
std::vector<std::vector<Item>> split_shards(const std::vector<Item>& items, int64_t limit) {
  std::vector<std::vector<Item>> shards;
  int64_t bytes = 0;
  for (const Item& item : items) {
    if (shards.empty() || bytes + item.bytes() > limit) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(item);
    bytes += item.bytes();
  }
  return shards;
}

void send_tensor(const ParameterReader& reader, DType type, const std::function<void(std::span<const std::byte>)>& sink) {
  const int64_t n = reader.elements();
  if (type == reader.stored().dtype && !(type == DType::kF32 && reader.has_master())) {
    const TensorView& v = reader.stored();
    for (int64_t at = 0; at < v.bytes(); at += 4 * kPiece) sink({v.data + at, static_cast<size_t>(std::min(4 * kPiece, v.bytes() - at))});
    return;
  }
  std::vector<float> values(static_cast<size_t>(std::min(kPiece, n)));
  std::vector<std::byte> stored(values.size() * static_cast<size_t>(dtype_bytes(type)));
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    reader.master(values.data(), at, count);
    convert_from_f32(stored.data(), type, values.data(), count);
    sink({stored.data(), static_cast<size_t>(count * dtype_bytes(type))});
  }
}

void write_shard(const ModelDirectory& model, const std::string& path, const std::vector<Item>& items, Progress& progress, StopToken stop) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, const Item*> by_name;
  for (const Item& item : items) {
    entries.push_back(item.entry);
    by_name[item.entry.name] = &item;
  }
  sort_safetensors_entries(entries);
  SafetensorsWriter writer(path, entries);
  std::map<int64_t, SafetensorsFile> files;
  for (const SafetensorsEntry& e : entries) {
    stop.throw_if_requested();
    const Item& item = *by_name.at(e.name);
    auto it = files.find(item.part);
    if (it == files.end()) it = files.emplace(item.part, model.part(item.part)).first;
    const ParameterReader reader(it->second, item.name);
    send_tensor(reader, e.dtype, [&](std::span<const std::byte> piece) { writer.write(piece); });
    reader.drop_pages();
    progress.add(1, e.name);
  }
  writer.finish();
}

std::string config_text(const ModelDirectory& model, WanLayout layout) {
  const ModelSource& source = model.manifest().source;
  if (source.layout == wan_layout_name(layout) && !source.config_json.empty()) return source.config_json;
  const ModelConfig& c = model.config();
  nlohmann::ordered_json j;
  if (layout == WanLayout::kDiffusers) {
    j = {{"_class_name", "WanTransformer3DModel"}, {"_diffusers_version", "0.35.0"}, {"added_kv_proj_dim", nullptr},
         {"attention_head_dim", c.head_dim()}, {"cross_attn_norm", true}, {"eps", c.eps}, {"ffn_dim", c.ffn_dim},
         {"freq_dim", c.freq_dim}, {"image_dim", nullptr}, {"in_channels", c.in_channels}, {"num_attention_heads", c.heads},
         {"num_layers", c.layers}, {"out_channels", c.out_channels}, {"patch_size", {1, 2, 2}}, {"pos_embed_seq_len", nullptr},
         {"qk_norm", "rms_norm_across_heads"}, {"rope_max_seq_len", c.rope_max_seq_len}, {"text_dim", c.text_dim}};
  } else {
    const char* model_type = c.in_channels > c.out_channels ? "i2v" : c.in_channels == 48 ? "ti2v" : "t2v";
    j = {{"_class_name", "WanModel"}, {"_diffusers_version", "0.30.0"}, {"dim", c.dim}, {"eps", c.eps}, {"ffn_dim", c.ffn_dim},
         {"freq_dim", c.freq_dim}, {"in_dim", c.in_channels}, {"model_type", model_type}, {"num_heads", c.heads},
         {"num_layers", c.layers}, {"out_dim", c.out_channels}, {"text_len", c.text_len}};
    // Not a key of the original, whose width is fixed at 4096.
    if (c.text_dim != 4096) j["text_dim"] = c.text_dim;
  }
  return j.dump(2) + "\n";
}

// A model directory, the source itself perhaps, holds more than its export: it is never replaced, nor a file of it.
void spare_model_directory(const std::string& folder, const std::string& out) {
  if (ModelDirectory::is_one(folder))
    throw Error(fmt::format("{}: {} is a model directory, which an export does not replace", out, folder), "choose another place for the export");
}

// An existing folder is replaced only when asked, and when it holds nothing but what an export writes.
void check_export_folder(const std::string& out, bool replace) {
  std::error_code ec;
  if (!fs::is_directory(out, ec) || fs::is_empty(out, ec)) return;
  spare_model_directory(out, out);
  if (!replace) throw Error(fmt::format("{} exists and is not empty", out), "choose another folder, or give --overwrite");
  for (const auto& e : fs::recursive_directory_iterator(out)) {
    const std::string extension = e.path().extension().string(), name = fs::relative(e.path(), out).string();
    const bool file = e.is_regular_file() && (extension == ".safetensors" || extension == ".json" || extension == ".model" || extension == ".txt");
    const bool folder = e.is_directory() && std::find(std::begin(kExportFolders), std::end(kExportFolders), name) != std::end(kExportFolders);
    if (!file && !folder) throw Error(fmt::format("{} holds other things than an exported model, such as {}", out, name), "choose another folder");
  }
}

void write_synced(const std::string& path, const std::string& text) {
  FileWriter file(path);
  file.write(text);
  file.sync();
  file.close();
}

// The networks of a model: one, or high and low noise with their places. A checkpoint is one of them; the other one comes
// from the model that it was trained from.
std::vector<ModelDirectory> networks_of(const ModelDirectory& model) {
  const std::string whole = model.parts_folder();
  const bool trained_second = model.manifest().source.network == kSecondNetworkFolder;
  if (trained_second && !whole.empty()) return {ModelDirectory::open(whole), model};
  if (model.has_second()) return {model, model.second()};
  if (model.config().boundary > 0 && !whole.empty() && whole != model.path() && ModelDirectory::open(whole).has_second())
    return {model, ModelDirectory::open(whole).second()};
  return {model};
}

// Writes one network's shards, index and config.json into `folder`, which lies in the temporary directory; returns the
// names of its files.
std::vector<std::string> write_network(const ModelDirectory& model, const std::string& folder, const std::vector<Item>& items, const ExportOptions& options,
                                       Progress& progress, StopToken stop) {
  fs::create_directories(folder);
  const auto shards = split_shards(items, options.max_shard_bytes);
  int64_t total = 0;
  for (const Item& item : items) total += item.bytes();
  nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", nlohmann::json::object()}};
  std::vector<std::string> names;
  for (size_t k = 0; k < shards.size(); ++k) {
    const std::string name = shards.size() == 1 ? fmt::format("{}.safetensors", kBase)
                                                : fmt::format("{}-{:05}-of-{:05}.safetensors", kBase, k + 1, shards.size());
    write_shard(model, folder + "/" + name, shards[k], progress, stop);
    names.push_back(name);
    for (const Item& item : shards[k]) index["weight_map"][item.entry.name] = name;
  }
  if (shards.size() > 1) {
    names.push_back(std::string(kBase) + ".safetensors.index.json");
    write_synced(folder + "/" + names.back(), index.dump(2) + "\n");
  }
  names.push_back("config.json");
  write_synced(folder + "/" + names.back(), config_text(model, options.layout));
  return names;
}

int64_t total_bytes(const std::vector<Item>& items) {
  int64_t total = 0;
  for (const Item& item : items) total += item.bytes();
  return total;
}

std::vector<std::string> export_file(const ModelDirectory& model, const std::string& out, const ExportOptions& options, StopToken stop) {
  std::error_code ec;
  spare_model_directory(parent_directory(out), out);
  if (!options.replace && fs::exists(out, ec)) throw Error(fmt::format("{} exists", out), "choose another name, or give --overwrite");
  const std::vector<Item> items = list_items(model, options);
  Progress progress("export", static_cast<double>(items.size()), "tensors");
  require_free_space(out, total_bytes(items), "the exported model");
  AtomicPath target(out);
  write_shard(model, target.temporary(), items, progress, stop);
  target.commit();
  return {out};
}

}  // namespace

std::vector<std::string> export_checkpoint(const ModelDirectory& model, const std::string& out, const ExportOptions& options, StopToken stop) {
  const std::vector<ModelDirectory> networks = networks_of(model);
  if (out.ends_with(".safetensors")) {
    if (networks.size() > 1) throw Error(fmt::format("{}: a model of two networks does not fit into one file", model.path()), "name a folder");
    return export_file(model, out, options, stop);
  }
  check_export_folder(out, options.replace);
  const PartsExport parts(model.parts_folder(), options.layout, networks.size() > 1);
  std::vector<std::string> folders = {""};
  if (networks.size() > 1) folders = options.layout == WanLayout::kDiffusers ? std::vector<std::string>{"transformer/", "transformer_2/"} : std::vector<std::string>{"high_noise_model/", "low_noise_model/"};
  else if (parts.any() && options.layout == WanLayout::kDiffusers) folders = {"transformer/"};
  std::vector<std::vector<Item>> items;
  int64_t total = parts.bytes();
  size_t count = 0;
  for (const ModelDirectory& n : networks) {
    items.push_back(list_items(n, options));
    total += total_bytes(items.back());
    count += items.back().size();
  }
  AtomicDirectory directory(out, options.replace);
  require_free_space(directory.temporary(), total, "the exported model");
  Progress progress("export", static_cast<double>(count), "tensors");
  std::vector<std::string> names;
  for (size_t i = 0; i < networks.size(); ++i)
    for (const std::string& name : write_network(networks[i], directory.file(folders[i]), items[i], options, progress, stop)) names.push_back(folders[i] + name);
  for (std::string& name : parts.write(directory.temporary(), stop)) names.push_back(std::move(name));
  directory.commit();
  for (std::string& name : names) name = (fs::path(out) / name).string();
  return names;
}

}  // namespace megaslide
