// Recognising a foreign checkpoint and deriving its ModelConfig.
#include <algorithm>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_cursor.h"
#include "config/nearest.h"
#include "io/json.h"
#include "io/wan_names.h"

namespace megaslide {
namespace {
using nlohmann::json;
using Tensors = std::map<std::string, SafetensorsSource::Entry>;

// Repacks put the transformer under one of these.
constexpr const char* kPrefixes[] = {"", "model.diffusion_model.", "diffusion_model.", "model.", "module.", "transformer."};

bool any_name(const Tensors& tensors, const std::vector<std::string>& parts) {
  for (const auto& [name, entry] : tensors)
    for (const auto& p : parts)
      if (name.find(p) != std::string::npos) return true;
  return false;
}

// What it is when it is no Wan transformer.
[[noreturn]] void reject_foreign(const std::string& path, const Tensors& tensors) {
  const auto is = [&](const std::string& what, const std::string& remedy) {
    throw Error(fmt::format("{}: not a Wan transformer but {}", path, what), remedy);
  };
  if (any_name(tensors, {".lora_A", ".lora_B", "lora_down", "lora_up", "lora_unet"}))
    is("a LoRA adapter", "merge it into its base model first, or give the base model");
  if (any_name(tensors, {"decoder.conv_in.", "encoder.conv_in.", "decoder.mid_block.", "encoder.downsamples.", "decoder.upsamples."}))
    is("a video autoencoder (VAE)", "give the transformer: the folder 'transformer' of a diffusers pipeline, or the whole pipeline folder");
  if (any_name(tensors, {"encoder.block.0.", "SelfAttention.", "shared.weight", "token_embedding.weight"}))
    is("a text encoder", "give the transformer: the folder 'transformer' of a diffusers pipeline, or the whole pipeline folder");
  if (any_name(tensors, {"double_blocks.", "single_blocks.", "transformer_blocks.", "joint_blocks.", "single_transformer_blocks."}))
    is("the transformer of another architecture", "Wan text-to-video models are supported");
  if (any_name(tensors, {"input_blocks.", "down_blocks."})) is("a U-Net", "Wan text-to-video models are supported");
  std::string names;
  int shown = 0;
  for (const auto& [name, entry] : tensors) {
    if (shown++ == 3) break;
    names += (names.empty() ? "" : ", ") + quote_for_message(name);
  }
  throw Error(fmt::format("{}: not a Wan transformer: no tensor patch_embedding.weight among {} tensors{}", path, tensors.size(),
                          names.empty() ? "" : " (" + names + ", …)"),
              "give a diffusers folder, or a file with the tensors of a Wan transformer");
}

constexpr int64_t kMaxLayers = 4096;
constexpr size_t kListed = 40, kHints = 10;  // lines of a finding; unknown names that get a nearest one

struct Finder {
  const std::string& path;
  const Tensors& tensors;
  WanCheckpoint& out;

  const TensorInfo* find(const std::string& name) const {
    const auto it = tensors.find(out.prefix + name);
    return it == tensors.end() ? nullptr : &it->second.info;
  }

  void choose_prefix_and_layout() {
    for (const char* p : kPrefixes) {
      out.prefix = p;
      if (!find("patch_embedding.weight")) continue;
      if (find("condition_embedder.time_proj.weight")) out.layout = WanLayout::kDiffusers;
      else if (find("time_projection.1.weight")) out.layout = WanLayout::kOriginal;
      else continue;
      return;
    }
    reject_foreign(path, tensors);
  }

  // Extent `axis` of a tensor that the config needs.
  int64_t extent(const char* diffusers, const char* original, size_t axis) const {
    const char* name = out.layout == WanLayout::kDiffusers ? diffusers : original;
    const TensorInfo* t = find(name);
    if (!t)
      throw Error(fmt::format("{}: tensor {}{} is missing, so the model's sizes cannot be told", path, out.prefix, name),
                  "the checkpoint is incomplete: fetch all of its files");
    if (t->shape.size() <= axis || t->shape[axis] < 1 || t->shape[axis] > (int64_t{1} << 24))
      throw Error(fmt::format("{}: tensor {}{} has the shape {}, unusable", path, out.prefix, name, to_string(t->shape)));
    return t->shape[axis];
  }

  int64_t count_layers() const {
    int64_t layers = 0;
    const std::string start = out.prefix + "blocks.";
    for (const auto& [name, entry] : tensors) {
      if (!name.starts_with(start)) continue;
      const size_t dot = name.find('.', start.size());
      const std::string digits = name.substr(start.size(), dot == std::string::npos ? dot : dot - start.size());
      if (digits.empty() || digits.size() > 5 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
      layers = std::max<int64_t>(layers, 1 + std::stoll(digits));
    }
    return layers;
  }
};

void shapes_to_config(const Finder& f, ModelConfig& c) {
  c.dim = f.extent("patch_embedding.weight", "patch_embedding.weight", 0);
  c.in_channels = f.extent("patch_embedding.weight", "patch_embedding.weight", 1);
  c.out_channels = f.extent("proj_out.weight", "head.head.weight", 0) / 4;
  c.ffn_dim = f.extent("blocks.0.ffn.net.0.proj.weight", "blocks.0.ffn.0.weight", 0);
  c.text_dim = f.extent("condition_embedder.text_embedder.linear_1.weight", "text_embedding.0.weight", 1);
  c.freq_dim = f.extent("condition_embedder.time_embedder.linear_1.weight", "time_embedding.0.weight", 1);
  c.layers = f.count_layers();
  if (c.layers > kMaxLayers) throw Error(fmt::format("{}: block numbers up to {}, more than any model has", f.path, c.layers - 1));
}

// The keys of config.json that shapes do not tell. Foreign files hold more keys than we know, and nulls.
void merge_config_json(const json& from, const std::string& path, WanCheckpoint& out) {
  if (!from.is_object()) throw Error(path + ": expected an object", "use the config.json that came with the weights");
  const auto integer = [&](const char* key) -> std::optional<int64_t> {
    const auto it = from.find(key);
    if (it == from.end() || it->is_null()) return std::nullopt;
    if (!it->is_number_integer()) throw Error(fmt::format("{}: {} must be an integer", path, key));
    return it->get<int64_t>();
  };
  ModelConfig& c = out.config;
  const auto agree = [&](const char* key, int64_t have) {
    const auto value = integer(key);
    if (value && *value != have)
      throw Error(fmt::format("{}: {} is {}, but the weights have {}", path, key, *value, have), "config.json and weights do not belong together");
  };
  const bool diffusers = from.contains("num_attention_heads");
  for (const auto& [key, have] : {std::pair("num_layers", c.layers), std::pair("ffn_dim", c.ffn_dim),
                                  std::pair(diffusers ? "in_channels" : "in_dim", c.in_channels),
                                  std::pair(diffusers ? "out_channels" : "out_dim", c.out_channels),
                                  std::pair("text_dim", c.text_dim), std::pair("freq_dim", c.freq_dim)})
    agree(key, have);
  if (const auto heads = integer(diffusers ? "num_attention_heads" : "num_heads")) {
    c.heads = *heads;
    if (diffusers) {
      if (const auto width = integer("attention_head_dim"); width && *width * *heads != c.dim)
        throw Error(fmt::format("{}: {} heads of {} do not make the weights' width {}", path, *heads, *width, c.dim),
                    "config.json and weights do not belong together");
    } else {
      agree("dim", c.dim);
    }
  }
  if (const auto n = integer("rope_max_seq_len")) c.rope_max_seq_len = *n;
  if (const auto n = integer("text_len")) c.text_len = *n;
  if (const auto it = from.find("eps"); it != from.end() && it->is_number()) c.eps = it->get<double>();
}

std::string known_name(const ModelConfig& c) {
  struct Known {
    int64_t dim, layers, ffn, in;
    const char* name;
  };
  constexpr Known kModels[] = {{1536, 30, 8960, 16, "wan2.1-t2v-1.3b"}, {5120, 40, 13824, 16, "wan2.1-t2v-14b"},
                               {3072, 30, 14336, 48, "wan2.2-ti2v-5b"}};
  for (const Known& k : kModels)
    if (c.dim == k.dim && c.layers == k.layers && c.ffn_dim == k.ffn && c.in_channels == k.in) return k.name;
  return "custom";
}

std::string join(const std::vector<std::string>& lines, size_t limit) {
  std::string text;
  for (size_t i = 0; i < lines.size() && i < limit; ++i) text += "\n  " + lines[i];
  if (lines.size() > limit) text += fmt::format("\n  … and {} more", lines.size() - limit);
  return text;
}

// Every tensor against the closed set.
void check_tensors(const Finder& f, WanCheckpoint& out) {
  std::set<std::string> unused;
  int64_t outside = 0;
  for (const auto& [name, entry] : f.tensors) {
    if (name.starts_with(out.prefix)) unused.insert(name);
    else ++outside;
  }
  std::vector<std::string> missing, misshapen, unknown, dtypes, expected;
  for (const WanTensor& t : wan_tensors(out.config)) {
    const std::string& name = out.layout == WanLayout::kDiffusers ? t.name : t.original;
    expected.push_back(out.prefix + name);
    const TensorInfo* info = f.find(name);
    if (!info) {
      missing.push_back(fmt::format("missing: {}{} {}", out.prefix, name, to_string(t.shape)));
      continue;
    }
    unused.erase(out.prefix + name);
    if (info->shape != t.shape)
      misshapen.push_back(fmt::format("wrong shape: {}{} is {}, expected {}", out.prefix, name, to_string(info->shape), to_string(t.shape)));
    if (info->dtype != DType::kF32 && info->dtype != DType::kBF16 && info->dtype != DType::kF16 && info->dtype != DType::kF64 &&
        info->dtype != DType::kF8_E4M3 && info->dtype != DType::kF8_E5M2)
      dtypes.push_back(fmt::format("unusable type: {}{} is {}", out.prefix, name, dtype_name(info->dtype)));
    out.source[t.name] = out.prefix + name;
  }
  for (const std::string& name : unused) {
    if (name.find(".norm_added_q.") != std::string::npos) {
      out.warnings.push_back(fmt::format("tensor {} has no use and is ignored", quote_for_message(name)));
      continue;
    }
    const std::string near = missing.empty() || unknown.size() >= kHints ? "" : nearest_name(name, expected);
    unknown.push_back(fmt::format("unknown: {}{}", quote_for_message(name), near.empty() ? "" : " (did you mean " + near + "?)"));
  }
  if (outside > 0) out.warnings.push_back(fmt::format("{} tensors outside {}* are ignored", outside, out.prefix));
  std::vector<std::string> all = missing;
  for (const auto* list : {&misshapen, &dtypes, &unknown}) all.insert(all.end(), list->begin(), list->end());
  if (all.empty()) return;
  throw Error(fmt::format("{}: not the tensors of a Wan transformer with {} layers of width {}: {} missing, {} of wrong shape, "
                          "{} of unusable type, {} unknown{}",
                          f.path, out.config.layers, out.config.dim, missing.size(), misshapen.size(), dtypes.size(), unknown.size(), join(all, kListed)),
              missing.empty() ? "remove what does not belong to the model, or use its original checkpoint" : "fetch all files of the checkpoint");
}

// Variants of Wan with parts that are not supported, by their tensors.
void reject_variants(const std::string& path, const WanCheckpoint& out, const Tensors& tensors) {
  if (any_name(tensors, {"img_emb.", "image_embedder.", "add_k_proj.", "k_img."}))
    throw Error(fmt::format("{}: a Wan 2.1 image-to-video model (it has an image encoder's projections)", path),
                "use a text-to-video model");
  if (any_name(tensors, {"vace_", "control_adapter", "face_adapter", "audio_proj", "ref_conv"}))
    throw Error(fmt::format("{}: a Wan variant with control inputs (VACE, animation or speech)", path), "use a text-to-video model");
  if (any_name(tensors, {out.prefix + "scaled_fp8", ".scale_weight", ".weight_scale", ".input_scale"}))
    throw Error(fmt::format("{}: weights in FP8 with scale tensors", path), "use the model in F32, BF16 or F16: fine-tuning needs its full values");
  if (any_name(tensors, {"lora_A", "lora_B", "lora_down", "lora_up"}))
    throw Error(fmt::format("{}: a model with unmerged LoRA tensors", path), "merge them into the weights first");
}

}  // namespace

WanCheckpoint identify_wan(const SafetensorsSource& source, const std::string& config_json, const std::string& config_path) {
  WanCheckpoint out;
  const std::string path = source.files().empty() ? config_path : source.files()[0].path();
  Finder finder{path, source.tensors(), out};
  finder.choose_prefix_and_layout();
  reject_variants(path, out, source.tensors());
  shapes_to_config(finder, out.config);
  ModelConfig& c = out.config;
  if (!config_json.empty()) merge_config_json(parse_json(config_json, config_path), config_path, out);
  if (c.heads == 0) {
    if (c.dim % 128)
      throw Error(fmt::format("{}: the number of attention heads is not in the weights, and width {} is no multiple of 128", path, c.dim),
                  "put the model's config.json beside the weights");
    c.heads = c.dim / 128;
    out.warnings.push_back(fmt::format("no config.json beside the weights: {} heads of 128 assumed", c.heads));
  }
  // Groups of the offset nets must not outnumber the heads; the default stays where it fits.
  c.attention.dsa.groups = std::min(c.attention.dsa.groups, c.heads);
  c.name = known_name(c);
  check_tensors(finder, out);
  try {
    validate(c);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", config_json.empty() ? path : config_path, e.message()), "the checkpoint and its config.json must belong together");
  }
  return out;
}

}  // namespace megaslide
