// The tensors of a Wan transformer: a closed set of names and shapes in two layouts (spec wan.md A.10), plus those of
// deformable slide attention (spec dsa.md §1, §5: offset net, motion term, pooled branch), which only our own files hold.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "io/fp8_scales.h"
#include "io/tensor_source.h"

namespace megaslide {

enum class WanLayout { kDiffusers, kOriginal };
const char* wan_layout_name(WanLayout l);  // "diffusers", "wan"

struct WanTensor {
  std::string name;      // diffusers name, complete: "blocks.3.attn1.to_q.weight"
  std::string original;  // name in the original layout; empty for a tensor of deformable attention
  Shape shape;
  int64_t layer;  // -1: embedding, 0 … layers-1: block, layers: head
};

// All tensors in canonical order: embedding, blocks, head; inside each the order of the parameter slabs. Hashes and the
// files of a model directory follow it.
std::vector<WanTensor> wan_tensors(const ModelConfig& config);
std::vector<WanTensor> wan_tensors(const ModelConfig& config, int64_t layer);  // of one part: -1 … layers
bool is_dsa_tensor(const std::string& name);

// A foreign checkpoint understood.
struct WanCheckpoint {
  WanLayout layout = WanLayout::kDiffusers;
  std::string prefix;                         // of a repack: "model.diffusion_model."; stripped
  ModelConfig config;                         // attention: dense
  std::map<std::string, std::string> source;  // diffusers name → name in the source
  Fp8Scales scales;                           // problems included: an import reports them (check_fp8), a look at the config doesn't
  std::map<std::string, std::string> scale;   // diffusers name of an FP8 tensor → name of its scale in the source
  std::vector<std::string> warnings;          // ignored tensors, guessed values
};

// Recognises the layout, derives the config (from `config_json`, the text of a config.json or empty; else from the shapes,
// with heads of 128) and compares every name and shape. Throws Error that lists all missing, unknown and misshapen
// tensors, or says what the checkpoint is instead (LoRA, VAE, text encoder, image-to-video).
WanCheckpoint identify_wan(const TensorSource& source, const std::string& config_json, const std::string& config_path);

}  // namespace megaslide
