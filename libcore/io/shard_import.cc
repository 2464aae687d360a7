// Foreign checkpoints to model directories.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "io/json.h"
#include "io/parameter_reader.h"
#include "io/shard.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPiece = 1 << 18;  // elements converted at a time
constexpr const char* kComponents[] = {"vae", "text_encoder", "tokenizer", "scheduler"};

// Where the parts of a checkpoint lie.
struct Places {
  std::string weights;   // what SafetensorsSource opens
  std::string pipeline;  // folder with the components, or empty
};

Places find_places(const std::string& given) {
  std::error_code ec;
  std::string source = given;
  while (source.size() > 1 && source.back() == '/') source.pop_back();
  if (!fs::exists(source, ec)) throw Error(fmt::format("{}: no such file or folder", given), "check the name");
  if (ModelDirectory::is_one(source))
    throw Error(fmt::format("{}: already a model directory", given), "use it as it is, or --export it first");
  if (!fs::is_directory(source, ec)) return {source, ""};
  if (fs::is_directory(source + "/transformer_2", ec))
    throw Error(fmt::format("{}: a pipeline with two transformers (Wan 2.2 A14B)", given),
                fmt::format("import each by itself: {0}/transformer and {0}/transformer_2", source));
  if (fs::is_directory(source + "/transformer", ec)) return {source + "/transformer", source};
  if (fs::exists(source + "/high_noise_model", ec))
    throw Error(fmt::format("{}: a checkpoint with two networks (Wan 2.2 A14B)", given),
                fmt::format("import each by itself: {0}/high_noise_model and {0}/low_noise_model", source));
  const std::string parent = parent_directory(fs::absolute(source).string());
  return {source, fs::exists(parent + "/model_index.json", ec) ? parent : ""};
}

struct ConfigFile {
  std::string path, text;  // empty when there is none, or it describes something else
};

ConfigFile find_config(const SafetensorsSource& source) {
  const std::string path = parent_directory(source.files()[0].path()) + "/config.json";
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return {};
  std::string text = read_file(path, 16 << 20);
  const nlohmann::json j = parse_json(text, path);
  if (j.is_object() && (j.contains("num_attention_heads") || j.contains("num_heads"))) return {path, std::move(text)};
  log_warning("{} does not describe a Wan transformer and is ignored", path);
  return {};
}

std::vector<std::pair<std::string, std::string>> list_components(const std::string& pipeline) {
  std::vector<std::pair<std::string, std::string>> files;  // path, name in the model directory
  if (pipeline.empty()) return files;
  std::error_code ec;
  for (const std::string folder : kComponents) {
    if (!fs::is_directory(pipeline + "/" + folder, ec)) continue;
    for (const auto& e : fs::recursive_directory_iterator(pipeline + "/" + folder)) {
      const std::string extension = e.path().extension().string();
      // Other frameworks' copies of the same weights stay behind.
      if (!e.is_regular_file() || extension == ".bin" || extension == ".msgpack" || extension == ".h5" || extension == ".onnx") continue;
      files.emplace_back(e.path().string(), folder + "/" + fs::relative(e.path(), pipeline + "/" + folder).string());
    }
  }
  if (fs::is_regular_file(pipeline + "/model_index.json", ec)) files.emplace_back(pipeline + "/model_index.json", "model_index.json");
  std::sort(files.begin(), files.end());
  return files;
}

// The original repository has its VAE and text encoder as pickles, which are not read.
void warn_of_archives(const std::string& folder) {
  std::error_code ec;
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(folder, ec))
    if (e.path().extension() == ".pth") names.push_back(e.path().filename().string());
  std::sort(names.begin(), names.end());
  for (const std::string& n : names)
    log_warning("{}/{}: a PyTorch archive, not taken along; a diffusers pipeline has the VAE and the text encoder as safetensors", folder, n);
}

void read_flow_shift(const std::string& pipeline, ModelConfig& config) {
  const std::string path = pipeline + "/scheduler/scheduler_config.json";
  std::error_code ec;
  if (pipeline.empty() || !fs::is_regular_file(path, ec)) return;
  const nlohmann::json j = read_json(path, 1 << 20);
  if (!j.is_object()) return;
  const auto it = j.contains("flow_shift") ? j.find("flow_shift") : j.find("shift");
  if (it != j.end() && it->is_number() && it->get<double>() > 0 && it->get<double>() <= 100) config.flow_shift = it->get<double>();
}

DType stored_type(DType from, StoreDtype want, const std::string& name) {
  if (want == StoreDtype::kBf16) return DType::kBF16;
  if (want == StoreDtype::kFp32) return DType::kF32;
  if (from == DType::kF8_E4M3 || from == DType::kF8_E5M2)
    throw Error(fmt::format("tensor {} is {}: training needs at least 16 bits", name, dtype_name(from)),
                "give --dtype bf16 to widen it, or better, import the original weights");
  return from == DType::kF64 ? DType::kF32 : from;
}

// The initial value of an offset net's tensor: its last linear layer is zero, so that the operator starts as plain
// neighbourhood attention (spec dsa.md §1); the convolution's scale is taken away by the norm behind it.
void fill_offset_net(std::span<float> out, const std::string& name, uint64_t series, int64_t first) {
  if (name.ends_with("conv.weight")) return fill_normal(out, 0, series, 1 / std::sqrt(27.0), first);
  std::fill(out.begin(), out.end(), name.ends_with("norm.weight") ? 1.f : 0.f);
}

class Importer {
 public:
  Importer(const SafetensorsSource& source, const WanCheckpoint& checkpoint, const ModelConfig& config, StoreDtype dtype)
      : source_(source), checkpoint_(checkpoint), dtype_(dtype), tensors_(wan_tensors(config)) {
    for (const WanTensor& t : tensors_) types_.push_back(choose_type(t));
  }

  int64_t bytes() const {
    int64_t n = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) n += element_count(tensors_[i].shape) * dtype_bytes(types_[i]);
    return n;
  }

  void write(ModelDirectoryWriter& writer, int64_t layers, StopToken stop) {
    Progress progress("shard", static_cast<double>(tensors_.size()), "tensors");
    for (int64_t part = -1; part <= layers; ++part) {
      std::vector<SafetensorsEntry> entries;
      std::vector<size_t> indices;
      for (size_t i = 0; i < tensors_.size(); ++i) {
        if (tensors_[i].layer != part) continue;
        entries.push_back({tensors_[i].name, types_[i], tensors_[i].shape});
        indices.push_back(i);
      }
      const std::string name = part < 0 ? kEmbedFile : part == layers ? kHeadFile : layer_file_name(part);
      writer.write_file(name, std::move(entries), [&](size_t i, const ModelDirectoryWriter::Sink& sink) {
        stop.throw_if_requested();
        provide(indices[i], sink);
        progress.add(1, name);
      });
    }
  }

 private:
  DType choose_type(const WanTensor& t) const {
    const auto it = checkpoint_.source.find(t.name);
    if (it != checkpoint_.source.end()) return stored_type(source_.tensors().at(it->second).info.dtype, dtype_, it->second);
    // An offset net follows the rest of the model.
    return types_.empty() ? DType::kF32 : types_.front();
  }

  void provide(size_t index, const ModelDirectoryWriter::Sink& sink) const {
    const WanTensor& t = tensors_[index];
    const auto it = checkpoint_.source.find(t.name);
    const bool foreign = it != checkpoint_.source.end();
    TensorView view;
    if (foreign) view = source_.view(it->second);
    const int64_t n = element_count(t.shape);
    if (foreign && view.dtype == types_[index]) {
      for (int64_t at = 0; at < view.bytes(); at += 4 * kPiece)
        sink({view.data + at, static_cast<size_t>(std::min(4 * kPiece, view.bytes() - at))});
    } else {
      std::vector<float> values(static_cast<size_t>(std::min(kPiece, n)));
      std::vector<std::byte> stored(values.size() * static_cast<size_t>(dtype_bytes(types_[index])));
      for (int64_t at = 0; at < n; at += kPiece) {
        const int64_t count = std::min(kPiece, n - at);
        if (foreign) read_f32(values.data(), view, at, count);
        else fill_offset_net({values.data(), static_cast<size_t>(count)}, t.name, index, at);
        convert_from_f32(stored.data(), types_[index], values.data(), count);
        sink({stored.data(), static_cast<size_t>(count * dtype_bytes(types_[index]))});
      }
    }
    if (foreign) source_.drop_pages(it->second);
  }

  const SafetensorsSource& source_;
  const WanCheckpoint& checkpoint_;
  StoreDtype dtype_;
  std::vector<WanTensor> tensors_;
  std::vector<DType> types_;
};

}  // namespace

void check_model_output(const std::string& directory, bool replace) {
  std::error_code ec;
  if (!fs::is_directory(directory, ec) || fs::is_empty(directory, ec)) return;
  if (!replace) throw Error(fmt::format("{} exists and is not empty", directory), "choose another folder, or give --overwrite");
  if (!ModelDirectory::is_one(directory))
    throw Error(fmt::format("{} exists and is no model directory", directory), "choose another folder: only a model directory is overwritten");
}

void import_checkpoint(const std::string& given, const std::string& directory, const ImportOptions& options, StopToken stop) {
  check_model_output(directory, options.replace);
  const Places places = find_places(given);
  const SafetensorsSource source = SafetensorsSource::open(places.weights);
  const ConfigFile config_file = find_config(source);
  const WanCheckpoint checkpoint = identify_wan(source, config_file.text, config_file.path);
  for (const std::string& w : checkpoint.warnings) log_warning("{}: {}", given, w);
  warn_of_archives(parent_directory(source.files()[0].path()));
  ModelConfig config = checkpoint.config;
  config.attention.kind = options.attention;
  read_flow_shift(places.pipeline, config);

  Importer importer(source, checkpoint, config, options.dtype);
  const auto components = list_components(places.pipeline);
  int64_t bytes = importer.bytes();
  for (const auto& [path, name] : components) bytes += static_cast<int64_t>(fs::file_size(path));
  ModelDirectoryWriter writer(directory, config, options.replace, bytes);
  ModelSource from;
  from.layout = wan_layout_name(checkpoint.layout);
  from.path = fs::path(places.weights).filename().string();
  from.prefix = checkpoint.prefix;
  from.config_json = config_file.text;
  writer.set_source(from);
  importer.write(writer, config.layers, stop);
  Progress progress("copy", static_cast<double>(components.size()), "files");
  for (const auto& [path, name] : components) {
    stop.throw_if_requested();
    writer.copy_file(path, name);
    progress.add(1, name);
  }
  writer.commit();
}

}  // namespace megaslide
