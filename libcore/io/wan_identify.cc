// Recognising a foreign checkpoint and deriving its ModelConfig.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/utf8.h"
#include "config/nearest.h"
#include "io/wan_config_json.h"
#include "io/wan_names.h"
#include "io/wan_variants.h"

namespace megaslide {
namespace {
using Tensors = std::map<std::string, TensorSource::Entry>;

// Repacks put the transformer under one of these.
constexpr const char* kPrefixes[] = {"", "model.diffusion_model.", "diffusion_model.", "model.", "module.", "transformer."};

constexpr int64_t kMaxLayers = 4096;
constexpr size_t kListed = 40, kHints = 10;  // lines of a finding; unknown names that get a nearest one

struct Finder {
  const TensorSource& source;
  const std::string& path;
  const Tensors& tensors;
  WanCheckpoint& out;

  const TensorSource::Entry* find(const std::string& name) const { return source.find(out.prefix + name); }

  void choose_prefix_and_layout() {
    for (const char* p : kPrefixes) {
      out.prefix = p;
      if (!find("patch_embedding.weight")) continue;
      if (find("condition_embedder.time_proj.weight") || find("condition_embedder.text_embedder.linear_1.weight")) out.layout = WanLayout::kDiffusers;
      else if (find("time_projection.1.weight") || find("text_embedding.0.weight")) out.layout = WanLayout::kOriginal;
      else continue;
      return;
    }
    reject_foreign_network(source);
  }

  // Extent `axis` of a tensor that the config needs.
  int64_t extent(const char* diffusers, const char* original, size_t axis) const {
    const char* name = out.layout == WanLayout::kDiffusers ? diffusers : original;
    const TensorSource::Entry* t = find(name);
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
    else outside += !out.scales.beside.count(name);
  }
  std::vector<std::string> missing, misshapen, unknown, dtypes, expected;
  for (const WanTensor& t : wan_tensors(out.config)) {
    const std::string& name = out.layout == WanLayout::kDiffusers ? t.name : t.original;
    expected.push_back(out.prefix + name);
    const TensorSource::Entry* info = f.find(name);
    if (!info) {
      missing.push_back(fmt::format("missing: {}{} {}", out.prefix, name, to_string(t.shape)));
      continue;
    }
    unused.erase(out.prefix + name);
    if (info->shape != t.shape)
      misshapen.push_back(fmt::format("wrong shape: {}{} is {}, expected {}{}", out.prefix, name, to_string(info->shape), to_string(t.shape),
                                      t.name == "patch_embedding.weight" && info->shape.size() == 5 && info->shape[1] == 36 ? " (36 channels: of an image-to-video model)" : ""));
    if (const auto scale = out.scales.scale_of.find(out.prefix + name); scale != out.scales.scale_of.end()) out.scale[t.name] = scale->second;
    if (info->dtype != DType::kF32 && info->dtype != DType::kBF16 && info->dtype != DType::kF16 && info->dtype != DType::kF64 && !is_fp8(info->dtype))
      dtypes.push_back(fmt::format("unusable type: {}{} is {}", out.prefix, name, dtype_name(info->dtype)));
    out.source[t.name] = out.prefix + name;
  }
  for (const std::string& name : unused) {
    if (out.scales.beside.count(name)) continue;
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
              missing.empty() ? "use the model's original checkpoint, with its own config.json" : "fetch all files of the checkpoint");
}

}  // namespace

WanCheckpoint identify_wan(const TensorSource& source, const std::string& config_json, const std::string& config_path) {
  WanCheckpoint out;
  const std::string& path = source.path();
  Finder finder{source, path, source.tensors(), out};
  finder.choose_prefix_and_layout();
  reject_wan_variants(source, out.prefix);
  out.scales = find_fp8_scales(source);
  shapes_to_config(finder, out.config);
  ModelConfig& c = out.config;
  if (!config_json.empty()) merge_wan_config_json(config_json, config_path, out.config);
  if (c.heads == 0) {
    if (c.dim % 128)
      throw Error(fmt::format("{}: the number of attention heads is not in the weights, and width {} is no multiple of 128", path, c.dim),
                  "put the model's config.json beside the weights");
    c.heads = c.dim / 128;
    out.warnings.push_back(fmt::format("no config.json beside the weights: {} heads of 128 assumed", c.heads));
  }
  // Groups of the offset nets must not outnumber the heads; the default stays where it fits.
  c.attention.dsa.groups = std::min(c.attention.dsa.groups, c.heads);
  c.attention.dsa.motion_share = 0;  // step 0 stays what the weights were trained for
  apply_wan_defaults(c, false);
  check_tensors(finder, out);
  try {
    validate(c);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", config_json.empty() ? path : config_path, e.message()), "the checkpoint and its config.json must belong together");
  }
  return out;
}

}  // namespace megaslide
