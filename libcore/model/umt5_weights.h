// The weights of a UMT5 encoder in transformers' form (spec wan.md B.7), read from mapped files a layer at a time.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "io/safetensors.h"
#include "model/layer.h"
#include "model/umt5_config.h"

namespace megaslide {

class Umt5Weights {
 public:
  // `folder`: text_encoder/ with one safetensors file, or shards with their index; F32, F16 or BF16. The table of
  // embeddings may be called shared.weight (which comes first) or encoder.embed_tokens.weight; decoder.* and lm_head.*
  // mean nothing here. Throws Error listing everything that is missing, unknown, or of another shape or type.
  Umt5Weights(const std::string& folder, const Umt5Config& config, const Module& block);

  // rows (n, width) fp32 of the ids, which are below vocab_size.
  void read_embeddings(std::span<const int64_t> ids, float* rows) const;
  // Block `layer` as a slab in the order of `block`'s layout, elements of dtype (kBF16 or kF32). The file's pages are
  // given back as it goes: no more than one matrix of them is resident.
  void read_layer(ThreadPool& pool, int64_t layer, const Module& block, DType dtype, void* slab) const;
  HostTensor final_norm() const;  // F32 (width)

 private:
  SafetensorsSource source_;
  std::string embeddings_;
  int64_t width_;
};

}  // namespace megaslide
