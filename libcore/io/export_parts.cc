#include "io/export_parts.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "io/model_directory.h"
#include "io/part_names.h"
#include "io/tensor_source.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

std::string lower_dtype(DType t) { return t == DType::kBF16 ? "bf16" : t == DType::kF16 ? "fp16" : "fp32"; }

// The part's tensors under their original names.
void write_original(const std::string& path, const TensorSource& source, const PartCheckpoint& part, StopToken stop) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> from;
  for (const PartTensor& t : part.tensors) {
    entries.push_back({t.original, source.find(part.source.at(t.name))->dtype, t.shape});
    from[t.original] = part.source.at(t.name);
  }
  sort_safetensors_entries(entries);
  Progress progress("export", static_cast<double>(entries.size()), "tensors");
  SafetensorsWriter writer(path, entries);
  for (const SafetensorsEntry& e : entries) {
    stop.throw_if_requested();
    source.stream(from.at(e.name), [&](std::span<const std::byte> piece) { writer.write(piece); });
    progress.add(1, e.name);
  }
  writer.finish();
}

}  // namespace

PartsExport::PartsExport(const std::string& folder, WanLayout layout, bool two_networks) : layout_(layout), folder_(folder) {
  if (folder.empty()) return;
  const ModelManifest manifest = ModelDirectory::open_unchecked(folder).manifest();
  for (const ManifestFile& f : manifest.files) {
    const auto in = [&](const char* part) { return f.name.starts_with(std::string(part) + "/"); };
    if (in("vae")) vae_ = folder + "/vae";
    if (in("text_encoder")) text_encoder_ = folder + "/text_encoder";
    if (layout == WanLayout::kDiffusers) {
      if (in("vae") || in("text_encoder") || in("tokenizer") || in("scheduler") || f.name == "model_index.json") copies_.emplace_back(folder + "/" + f.name, f.name);
    } else if (in("tokenizer")) {
      copies_.emplace_back(folder + "/" + f.name, "google/umt5-xxl/" + fs::path(f.name).filename().string());
    }
  }
  if (!any() && !two_networks) copies_.clear();
}

int64_t PartsExport::bytes() const {
  int64_t n = 0;
  for (const auto& [path, name] : copies_) n += static_cast<int64_t>(fs::file_size(path));
  if (layout_ == WanLayout::kDiffusers) return n;
  for (const std::string& part : {vae_, text_encoder_}) {
    if (part.empty()) continue;
    const TensorSource source = TensorSource::open(part);
    for (const auto& [name, e] : source.tensors()) n += e.bytes();
  }
  return n;
}

std::vector<std::string> PartsExport::write(const std::string& out, StopToken stop) const {
  std::vector<std::string> names;
  for (const auto& [path, name] : copies_) {
    stop.throw_if_requested();
    fs::create_directories(fs::path(out + "/" + name).parent_path());
    copy_file(path, out + "/" + name);
    names.push_back(name);
  }
  if (layout_ == WanLayout::kDiffusers) return names;
  if (!vae_.empty()) {
    const TensorSource source = TensorSource::open(vae_);
    const PartCheckpoint part = identify_vae(source, "{}");
    names.push_back(part.codec == CodecKind::kWan22Vae ? "Wan2.2_VAE.safetensors" : "Wan2.1_VAE.safetensors");
    write_original(out + "/" + names.back(), source, part, stop);
  }
  if (!text_encoder_.empty()) {
    const TensorSource source = TensorSource::open(text_encoder_);
    const PartCheckpoint part = identify_umt5(source, "{}");
    names.push_back(fmt::format("models_t5_umt5-xxl-enc-{}.safetensors", lower_dtype(source.find("shared.weight")->dtype)));
    write_original(out + "/" + names.back(), source, part, stop);
  }
  return names;
}

}  // namespace megaslide
