// Foreign checkpoints to model directories.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "io/import_parts.h"
#include "io/json.h"
#include "io/shard.h"
#include "io/tensor_convert.h"
#include "io/wan_variants.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPiece = 1 << 18;  // elements made at a time

struct ConfigFile {
  std::string path, text;  // empty when there is none, or it describes something else
};

ConfigFile find_config(const TensorSource& source) {
  const std::string path = parent_directory(source.path()) + "/config.json";
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return {};
  std::string text = read_file(path, 16 << 20);
  const nlohmann::json j = parse_json(text, path);
  if (j.is_object() && (j.contains("num_attention_heads") || j.contains("num_heads"))) return {path, std::move(text)};
  log_warning("{} does not describe a Wan transformer and is ignored", path);
  return {};
}

DType stored_type(DType from, StoreDtype want) {
  if (want == StoreDtype::kBf16) return DType::kBF16;
  if (want == StoreDtype::kFp32) return DType::kF32;
  return from == DType::kF64 ? DType::kF32 : from;
}

// The initial value of a tensor of deformable attention. The offset net's last linear layer, the motion term's gains and
// the pooled branch's gates are zero, so that the operator starts as plain neighbourhood attention (spec dsa.md §1, §5);
// the scale of the convolution and of the motion term's projection is taken away behind them.
void fill_dsa(std::span<float> out, const WanTensor& t, uint64_t series, int64_t first) {
  if (t.name.ends_with("conv.weight")) return fill_normal(out, 0, series, 1 / std::sqrt(27.0), first);
  if (t.name.ends_with("motion_proj.weight")) return fill_normal(out, 0, series, 1 / std::sqrt(static_cast<double>(t.shape[1])), first);
  std::fill(out.begin(), out.end(), t.name.ends_with("norm.weight") || t.name.ends_with("motion_beta") ? 1.f : 0.f);
}

// One network of the checkpoint.
class Network {
 public:
  Network(const std::string& given, const std::string& weights, const ImportOptions& options)
      : source_(TensorSource::open(weights)), config_file_(find_config(source_)), checkpoint_(identify_wan(source_, config_file_.text, config_file_.path)),
        given_(fs::path(weights).filename().string()) {
    for (const std::string& w : checkpoint_.warnings) log_warning("{}: {}", given, w);
    check_fp8(checkpoint_.scales, source_.path(), options.dtype != StoreDtype::kKeep);
    config_ = checkpoint_.config;
    config_.attention.kind = options.attention;
    if (options.attention_of) take_attention(*options.attention_of, given);
    dtype_ = options.dtype;
  }

  ModelConfig& config() { return config_; }
  const std::string& path() const { return source_.path(); }

  void take_attention(const ModelConfig& from, const std::string& given) {
    if (from.layers != config_.layers || from.heads != config_.heads)
      throw usage_error(fmt::format("the attention of {} is for {} layers of {} heads, but {} has {} of {}", from.name, from.layers, from.heads, given,
                                    config_.layers, config_.heads),
                        "give the model file of a network of this size");
    config_.attention = from.attention;
    config_.attention.dsa.motion_share = 0;  // step 0 stays what the weights were trained for
  }

  // After config() is complete.
  void plan() {
    tensors_ = wan_tensors(config_);
    for (const WanTensor& t : tensors_) {
      const auto it = checkpoint_.source.find(t.name);
      // Deformable attention follows the rest of the model.
      types_.push_back(it != checkpoint_.source.end() ? stored_type(source_.find(it->second)->dtype, dtype_) : types_.empty() ? DType::kF32 : types_.front());
    }
  }
  int64_t bytes() const {
    int64_t n = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) n += element_count(tensors_[i].shape) * dtype_bytes(types_[i]);
    return n;
  }

  void write(ModelDirectoryWriter& writer, const std::string& label, StopToken stop) const {
    ModelSource from;
    from.layout = wan_layout_name(checkpoint_.layout);
    from.path = given_;
    from.prefix = checkpoint_.prefix;
    from.config_json = config_file_.text;
    writer.set_source(std::move(from));
    Progress progress("shard", static_cast<double>(tensors_.size()), "tensors");
    TensorConverter converter(source_, label);
    for (int64_t part = -1; part <= config_.layers; ++part) {
      std::vector<SafetensorsEntry> entries;
      std::vector<size_t> indices;
      for (size_t i = 0; i < tensors_.size(); ++i) {
        if (tensors_[i].layer != part) continue;
        entries.push_back({tensors_[i].name, types_[i], tensors_[i].shape});
        indices.push_back(i);
      }
      const std::string name = part < 0 ? kEmbedFile : part == config_.layers ? kHeadFile : layer_file_name(part);
      writer.write_file(name, entries, [&](size_t i, const ModelDirectoryWriter::Sink& sink) {
        stop.throw_if_requested();
        provide(indices[i], converter, sink);
        progress.add(1, name);
      });
    }
    converter.report();
  }

 private:
  void provide(size_t index, TensorConverter& converter, const ModelDirectoryWriter::Sink& sink) const {
    const WanTensor& t = tensors_[index];
    const auto it = checkpoint_.source.find(t.name);
    if (it != checkpoint_.source.end()) {
      const auto scale = checkpoint_.scale.find(t.name);
      return converter.convert({t.name, types_[index], t.shape, it->second, scale == checkpoint_.scale.end() ? "" : scale->second}, sink);
    }
    const int64_t n = element_count(t.shape);
    std::vector<float> values(static_cast<size_t>(std::min(kPiece, n)));
    std::vector<std::byte> stored(values.size() * static_cast<size_t>(dtype_bytes(types_[index])));
    for (int64_t at = 0; at < n; at += kPiece) {
      const int64_t count = std::min(kPiece, n - at);
      fill_dsa({values.data(), static_cast<size_t>(count)}, t, index, at);
      convert_from_f32(stored.data(), types_[index], values.data(), count);
      sink({stored.data(), static_cast<size_t>(count * dtype_bytes(types_[index]))});
    }
  }

  TensorSource source_;
  ConfigFile config_file_;
  WanCheckpoint checkpoint_;
  std::string given_;
  ModelConfig config_;
  StoreDtype dtype_ = StoreDtype::kKeep;
  std::vector<WanTensor> tensors_;
  std::vector<DType> types_;
};

void check_alike(const ModelConfig& a, const ModelConfig& b, const std::string& path_a, const std::string& path_b) {
  if (a.dim == b.dim && a.layers == b.layers && a.heads == b.heads && a.ffn_dim == b.ffn_dim && a.in_channels == b.in_channels &&
      a.out_channels == b.out_channels && a.text_dim == b.text_dim && a.freq_dim == b.freq_dim)
    return;
  throw Error(fmt::format("{} and {}: two networks of different sizes, which do not belong together", path_a, path_b), "fetch both from the same checkpoint");
}

}  // namespace

void check_model_output(const std::string& directory, bool replace) {
  std::error_code ec;
  if (!fs::is_directory(directory, ec) || fs::is_empty(directory, ec)) return;
  if (!replace) throw Error(fmt::format("{} exists and is not empty", directory), "choose another folder, or give --overwrite");
  if (!ModelDirectory::is_one(directory))
    throw Error(fmt::format("{} exists and is no model directory", directory), "choose another folder: only a model directory is overwritten");
}

namespace {

// Everything that an import needs to know, understood and checked.
struct Understood {
  std::unique_ptr<Network> network, second;
  std::unique_ptr<PartsImport> parts;
};

Understood understand(const std::string& given, const ImportOptions& options) {
  const CheckpointPlaces places = find_places(given, options.parts);
  Understood u;
  u.network = std::make_unique<Network>(given, places.weights, options);
  ModelConfig& c = u.network->config();
  if (!places.weights_2.empty()) {
    u.second = std::make_unique<Network>(given, places.weights_2, options);
    check_alike(c, u.second->config(), u.network->path(), u.second->path());
    apply_wan_defaults(c, true);
    if (const auto boundary = index_boundary(places.model_index)) c.boundary = *boundary;
  }
  if (const auto shift = scheduler_flow_shift(places.scheduler)) c.flow_shift = *shift;
  if (is_conditioned(c))
    log_warning("{}: an image-to-video network ({} channels in, {} out): it can be stored and exported, but not trained or sampled from", given,
                c.in_channels, c.out_channels);
  u.parts = std::make_unique<PartsImport>(places, options.dtype, u.second != nullptr, c);
  if (u.second) {
    // By itself it is a model of one network.
    ModelConfig alone = c;
    alone.boundary = alone.guidance_scale_2 = 0;
    alone.guidance_scale = c.guidance_scale_2;
    u.second->config() = alone;
  }
  return u;
}

}  // namespace

ModelConfig foreign_config(const std::string& source) {
  // A look at the sizes, which need no permission to de-quantise.
  return understand(source, {.dtype = StoreDtype::kBf16}).network->config();
}

void import_checkpoint(const std::string& given, const std::string& directory, const ImportOptions& options, StopToken stop) {
  check_model_output(directory, options.replace);
  const Understood u = understand(given, options);
  u.network->plan();
  if (u.second) u.second->plan();
  const int64_t bytes = u.network->bytes() + (u.second ? u.second->bytes() : 0) + u.parts->bytes();
  ModelDirectoryWriter writer(directory, u.network->config(), options.replace, bytes);
  u.network->write(writer, "transformer", stop);
  if (u.second) {
    ModelDirectoryWriter nested(writer.nested_path(kSecondNetworkFolder), u.second->config(), false, 0);
    u.second->write(nested, kSecondNetworkFolder, stop);
    nested.commit();
    writer.adopt_nested(kSecondNetworkFolder);
  }
  u.parts->write(writer, stop);
  writer.commit();
}

}  // namespace megaslide
