// Sizes of a UMT5 encoder (spec wan.md B.1), from text_encoder/config.json.
#pragma once
#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace megaslide {

struct Umt5Config {
  int64_t vocab_size = 256384;
  int64_t width = 4096;      // d_model
  int64_t heads = 64;        // num_heads
  int64_t head_dim = 64;     // d_kv
  int64_t ffn_width = 10240; // d_ff
  int64_t layers = 24;       // num_layers
  double eps = 1e-6;         // layer_norm_epsilon
  int64_t inner() const { return heads * head_dim; }
};

// Throws Error naming the file and all that is missing, out of range, or another architecture's.
Umt5Config umt5_config(const nlohmann::json& json, const std::string& source);
Umt5Config read_umt5_config(const std::string& path);

}  // namespace megaslide
