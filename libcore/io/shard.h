// What shard-weights does: checkpoints in, model directories out, and back.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/stop.h"
#include "base/thread_pool.h"
#include "io/checkpoint_places.h"
#include "io/model_directory.h"
#include "io/wan_names.h"

namespace megaslide {

// What tensors are stored as. kKeep: as they are.
enum class StoreDtype { kKeep, kBf16, kFp32 };

struct ImportOptions {
  StoreDtype dtype = StoreDtype::kKeep;
  AttentionKind attention = AttentionKind::kDense;
  bool replace = false;
  std::optional<ModelConfig> attention_of = std::nullopt;  // instead of `attention`: kinds, windows and offsets as in this model
  PartFlags parts = {};  // VAE, text encoder and tokenizer that don't lie beside the weights
};

// Error when `directory` exists, is not empty and may not be replaced: `replace` is false, or it is no model directory.
void check_model_output(const std::string& directory, bool replace);

// `given`: see find_places (io/checkpoint_places.h). VAE, text encoder, tokenizer and scheduler come along in diffusers'
// form, whatever they are in; a second network becomes the model directory transformer_2 inside. With attention kDsa the
// offset nets are added with initial values that leave plain neighbourhood attention. FP8 weights need a dtype. Everything
// is understood and checked before the first byte is written.
void import_checkpoint(const std::string& given, const std::string& directory, const ImportOptions& options, StopToken stop = {});

// The configuration that an import of `source` would give; reads headers and small files only.
ModelConfig foreign_config(const std::string& source);

struct ExportOptions {
  WanLayout layout = WanLayout::kDiffusers;
  StoreDtype dtype = StoreDtype::kKeep;
  int64_t max_shard_bytes = 5'000'000'000;  // tensor bytes a file; a larger tensor has a file of its own
  bool replace = false;
  std::string prefix = {};  // before every name of the network: "model.diffusion_model."
};

// Writes config.json and diffusion_pytorch_model.safetensors, or shards with an index, into the folder `out`; a name
// that ends in .safetensors becomes that one file. Where the VAE or the text encoder is at hand, the folder becomes a whole
// pipeline (diffusers) or Wan's own folder, with VAE and text encoder as safetensors (wan); two networks go to transformer
// and transformer_2, or high_noise_model and low_noise_model. From a checkpoint: kKeep and kBf16 give the weights, kFp32
// the masters; the parts and the other network are those of the model that it was trained from. Offset nets have no place
// in these layouts: they are left out, with a warning when they do something. Returns the paths of the files written.
std::vector<std::string> export_checkpoint(const ModelDirectory& model, const std::string& out, const ExportOptions& options, StopToken stop = {});

struct TensorSummary {
  std::string name, dtype;
  Shape shape;
};
struct ModelSummary {
  std::string architecture;  // "wan"
  std::string name;
  int64_t parameters = 0, layers = 0, bytes = 0;  // of a model of two networks: parameters and bytes of both
  size_t files = 0;
  std::string dtype, attention;
  std::optional<uint64_t> step;  // of a checkpoint
  std::vector<TensorSummary> tensors;  // of the second network with "transformer_2." before the name
  struct NetworkSummary {
    std::string name;  // "transformer", "transformer_2"
    int64_t parameters = 0, bytes = 0;
    std::string dtype;
  };
  std::vector<NetworkSummary> networks;  // one or two
  std::vector<std::string> parts;        // "vae", "text_encoder", "tokenizer": what lies in the directory
};
ModelSummary describe(const ModelDirectory& model);
std::string summary_to_json(const ModelSummary& s, const ModelManifest& manifest);
std::string summary_to_text(const ModelSummary& s, const ModelManifest& manifest);

// StateHasher's hash of what the directory holds. A plain model: stored weights rounded to bf16, and widened to fp32 as
// masters; no moments, no step. Of one network.
std::string hash_state(const ModelDirectory& model, StopToken stop = {});

// What a program answers about a model directory, as text and as one JSON document.
struct Verdict {
  std::string text, json;
  bool good = true;
};
Verdict describe_model(const ModelDirectory& model);                                    // summary_to_text, summary_to_json
Verdict verify_model(const std::string& directory, ThreadPool& pool, StopToken stop = {});  // a line a file that differs
Verdict list_files(const std::vector<std::string>& paths);
// hash_state; of a model of two networks the SHA-256 of both hashes, a line each.
Verdict hash_model(const ModelDirectory& model, StopToken stop = {});

// Initial values by Philox (purpose kInit): element i of tensor `series` is a function of (seed, series, i) alone.
void fill_normal(std::span<float> out, uint64_t seed, uint64_t series, double deviation, int64_t first = 0);
void fill_uniform(std::span<float> out, uint64_t seed, uint64_t series, double bound, int64_t first = 0);  // [-bound, bound]

}  // namespace megaslide
