#include "io/import_parts.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "io/json.h"
#include "io/tensor_convert.h"
#include "io/wan_variants.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxTokenizerFile = int64_t{64} << 20, kMaxJson = 16 << 20;

bool is_file(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

std::optional<double> number_at(const std::string& path, std::initializer_list<const char*> keys) {
  if (path.empty()) return std::nullopt;
  const nlohmann::json j = read_json(path, kMaxJson);
  if (!j.is_object()) return std::nullopt;
  for (const char* key : keys)
    if (const auto it = j.find(key); it != j.end() && it->is_number()) return it->get<double>();
  return std::nullopt;
}

// The config.json beside a part, when it is of the class that the part belongs to.
std::string config_beside(const TensorSource& source, const std::string& key) {
  const std::string path = parent_directory(source.path()) + "/config.json";
  if (!is_file(path)) return {};
  std::string text = read_file(path, kMaxJson);
  const nlohmann::json j = parse_json(text, path);
  return j.is_object() && j.contains(key) ? text : std::string();
}

std::string scheduler_text(const ModelConfig& c) {
  const nlohmann::ordered_json j = {{"_class_name", "UniPCMultistepScheduler"}, {"_diffusers_version", "0.35.0"}, {"beta_end", 0.02},
                                    {"beta_schedule", "linear"}, {"beta_start", 0.0001}, {"disable_corrector", nlohmann::json::array()},
                                    {"dynamic_thresholding_ratio", 0.995}, {"final_sigmas_type", "zero"}, {"flow_shift", c.flow_shift},
                                    {"lower_order_final", true}, {"num_train_timesteps", 1000}, {"predict_x0", true},
                                    {"prediction_type", "flow_prediction"}, {"rescale_betas_zero_snr", false}, {"sample_max_value", 1.0},
                                    {"solver_order", 2}, {"solver_p", nullptr}, {"solver_type", "bh2"}, {"steps_offset", 0}, {"thresholding", false},
                                    {"timestep_spacing", "linspace"}, {"trained_betas", nullptr}, {"use_beta_sigmas", false},
                                    {"use_exponential_sigmas", false}, {"use_flow_sigmas", true}, {"use_karras_sigmas", false}};
  return j.dump(2) + "\n";
}

}  // namespace

std::optional<double> scheduler_flow_shift(const std::string& path) {
  const auto value = number_at(path, {"flow_shift", "shift"});
  return value && *value > 0 && *value <= 100 ? value : std::nullopt;
}

std::optional<double> index_boundary(const std::string& path) {
  const auto value = number_at(path, {"boundary_ratio"});
  return value && *value > 0 && *value < 1 ? value : std::nullopt;
}

PartsImport::PartsImport(const CheckpointPlaces& places, StoreDtype dtype, bool two_networks, ModelConfig& config) : dtype_(dtype) {
  vae_ = open(places.vae, places.vae_certain, identify_vae, config.out_channels, "latent channels");
  text_encoder_ = open(places.text_encoder, places.text_encoder_certain, identify_umt5, config.text_dim, "wide embeddings");
  find_tokenizer(places);
  if (vae_) config.codec = vae_->checkpoint.codec;
  if (text_encoder_) {
    const bool readable = !spiece_.empty() || std::any_of(tokenizer_.begin(), tokenizer_.end(), [](const auto& f) { return f.second == "tokenizer/spiece.model"; });
    if (readable) config.text_encoder = TextEncoderKind::kUmt5;
    else
      log_warning("{}: a text encoder without its tokenizer (spiece.model), so that prompts cannot be encoded: import again with --tokenizer DIR",
                  text_encoder_->source.path());
  }
  for (const auto* part : {&vae_, &text_encoder_})
    if (*part) check_fp8((*part)->checkpoint.scales, (*part)->source.path(), dtype_ != StoreDtype::kKeep);
  if (!places.model_index.empty()) model_index_ = read_file(places.model_index, kMaxJson);
  if (!places.scheduler.empty()) scheduler_ = read_file(places.scheduler, kMaxJson);
  if (!any() && !two_networks) return;
  if (scheduler_.empty()) scheduler_ = scheduler_text(config);
  if (model_index_.empty()) model_index_ = model_index_text(config);
}

std::optional<PartsImport::Part> PartsImport::open(const std::vector<std::string>& candidates, bool certain, Identify identify, int64_t width,
                                                   const char* what) const {
  for (const std::string& path : candidates) {
    try {
      Part part(TensorSource::open(path));
      part.checkpoint = identify(part.source, config_beside(part.source, identify == identify_vae ? "z_dim" : "d_model"));
      if (part.checkpoint.width != width)
        throw Error(fmt::format("{}: {} {}, but the transformer has {}", path, part.checkpoint.width, what, width), "give the parts that belong to the transformer");
      return part;
    } catch (const Error& e) {
      if (certain) throw;
      log_warning("not taken along: {}", e.message());
    }
  }
  return std::nullopt;
}

void PartsImport::find_tokenizer(const CheckpointPlaces& places) {
  if (text_encoder_) spiece_ = embedded_tokenizer(text_encoder_->source);
  if (places.tokenizer.empty()) return;
  for (const auto& e : fs::directory_iterator(places.tokenizer)) {
    const std::string name = e.path().filename().string(), extension = e.path().extension().string();
    if (!is_file(e.path().string()) || (extension != ".model" && extension != ".json" && extension != ".txt")) continue;
    if (static_cast<int64_t>(e.file_size()) > kMaxTokenizerFile)
      throw Error(fmt::format("{}: {} bytes, larger than any tokenizer's file", e.path().string(), e.file_size()), "remove what does not belong to the tokenizer");
    tokenizer_.emplace_back(e.path().string(), "tokenizer/" + name);
    if (name == "spiece.model") spiece_.clear();
    if (name == "tokenizer_config.json") {
      const nlohmann::json j = read_json(e.path().string(), kMaxTokenizerFile);
      const auto it = j.find("tokenizer_class");
      // T5Tokenizer is what transformers 4 called the slow one, which diffusers' pipelines never name.
      if (it != j.end() && it->is_string() && *it != "T5Tokenizer") tokenizer_class_ = it->get<std::string>();
    }
  }
  std::sort(tokenizer_.begin(), tokenizer_.end());
}

std::string PartsImport::model_index_text(const ModelConfig& c) const {
  nlohmann::ordered_json j = {{"_class_name", is_conditioned(c) ? "WanImageToVideoPipeline" : "WanPipeline"}, {"_diffusers_version", "0.35.0"}};
  const auto pair = [](bool there, const char* library, const char* name) {
    return there ? nlohmann::json{library, name} : nlohmann::json{nullptr, nullptr};
  };
  j["boundary_ratio"] = c.boundary > 0 ? nlohmann::json(c.boundary) : nlohmann::json(nullptr);
  // Wan 2.2 TI2V-5B: a timestep a token.
  j["expand_timesteps"] = c.codec == CodecKind::kWan22Vae;
  j["scheduler"] = pair(true, "diffusers", "UniPCMultistepScheduler");
  j["text_encoder"] = pair(text_encoder_.has_value(), "transformers", "UMT5EncoderModel");
  j["tokenizer"] = pair(!tokenizer_.empty(), "transformers", tokenizer_class_.c_str());
  j["transformer"] = pair(true, "diffusers", "WanTransformer3DModel");
  j["transformer_2"] = pair(c.boundary > 0, "diffusers", "WanTransformer3DModel");
  j["vae"] = pair(vae_.has_value(), "diffusers", "AutoencoderKLWan");
  return j.dump(2) + "\n";
}

int64_t PartsImport::bytes() const {
  int64_t n = 1 << 20;  // JSON files
  for (const auto* part : {&vae_, &text_encoder_})
    if (*part)
      for (const auto& [name, e] : (*part)->source.tensors()) n += is_fp8(e.dtype) ? 4 * e.bytes() : e.bytes();
  for (const auto& [path, name] : tokenizer_) n += static_cast<int64_t>(fs::file_size(path));
  return n;
}

// True when the source's files are already what a model directory holds.
bool PartsImport::canonical(const Part& part, const std::string& base) const {
  const PartCheckpoint& c = part.checkpoint;
  if (!part.source.is_safetensors() || c.original || !c.prefix.empty() || c.has_more || c.scales.any()) return false;
  if (part.source.index().empty()) return true;
  // A VAE is one file; a text encoder may come in shards.
  return base == "model" && part.source.index().ends_with("/" + base + ".safetensors.index.json");
}

void PartsImport::write_part(ModelDirectoryWriter& writer, const Part& part, const std::string& folder, const std::string& base, StopToken stop) const {
  TensorConverter converter(part.source, folder);
  Progress progress(folder, static_cast<double>(part.checkpoint.tensors.size()), "tensors");
  writer.write_text(part.checkpoint.config_json, folder + "/config.json");
  if (canonical(part, base)) {
    for (const PartTensor& t : part.checkpoint.tensors) {
      stop.throw_if_requested();
      converter.scan(part.checkpoint.source.at(t.name));
      progress.add(1, t.name);
    }
    const bool single = part.source.index().empty();
    for (const std::string& path : part.source.files()) writer.copy_file(path, folder + "/" + (single ? base + ".safetensors" : fs::path(path).filename().string()));
    if (!single) writer.copy_file(part.source.index(), folder + "/" + base + ".safetensors.index.json");
    return converter.report();
  }
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, TensorRecipe> recipes;
  for (const PartTensor& t : part.checkpoint.tensors) {
    TensorRecipe r{t.name, DType::kF32, t.shape, part.checkpoint.source.at(t.name), ""};
    r.dtype = part.source.find(r.source)->dtype;
    if (const auto scale = part.checkpoint.scales.scale_of.find(r.source); scale != part.checkpoint.scales.scale_of.end()) {
      r.scale = scale->second;
      r.dtype = dtype_ == StoreDtype::kFp32 ? DType::kF32 : DType::kBF16;
    }
    entries.push_back({t.name, r.dtype, t.shape});
    recipes[t.name] = std::move(r);
  }
  sort_safetensors_entries(entries);
  writer.write_part_file(folder + "/" + base + ".safetensors", entries, [&](size_t i, const ModelDirectoryWriter::Sink& sink) {
    stop.throw_if_requested();
    converter.convert(recipes.at(entries[i].name), sink);
    progress.add(1, entries[i].name);
  });
  converter.report();
}

void PartsImport::write(ModelDirectoryWriter& writer, StopToken stop) const {
  if (vae_) write_part(writer, *vae_, "vae", "diffusion_pytorch_model", stop);
  if (text_encoder_) write_part(writer, *text_encoder_, "text_encoder", "model", stop);
  for (const auto& [path, name] : tokenizer_) writer.copy_file(path, name);
  if (!spiece_.empty()) {
    const HostTensor t = text_encoder_->source.read(spiece_, kMaxTokenizerFile);
    writer.write_text({reinterpret_cast<const char*>(t.data()), static_cast<size_t>(t.bytes())}, "tokenizer/spiece.model");
  }
  if (!scheduler_.empty()) writer.write_text(scheduler_, "scheduler/scheduler_config.json");
  if (!model_index_.empty()) writer.write_text(model_index_, "model_index.json");
}

}  // namespace megaslide
