#include "model/umt5_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"
#include "kernels/relative_attention/relative_attention.h"

namespace megaslide {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxSize = 1 << 20;  // of any one axis but the vocabulary: far beyond the largest T5

void read_size(JsonFields& f, const char* key, int64_t& value, int64_t most = kMaxSize) {
  value = 1;
  f.read(key, value);
  if (value < 1 || value > most) f.problem(fmt::format("{} is {}, expected 1 to {}", key, value, most));
}

// A key that must have one value, where it is there at all.
template <class T>
void expect(JsonFields& f, const char* key, const T& wanted) {
  const nlohmann::json* v = f.find(key);
  if (v && *v != nlohmann::json(wanted)) f.problem(fmt::format("{} is {}, this program knows {} only", key, short_json(*v), nlohmann::json(wanted).dump()));
}

}  // namespace

Umt5Config umt5_config(const nlohmann::json& json, const std::string& source) {
  Umt5Config c;
  JsonFields f(json, source);
  f.allow_unknown();
  expect(f, "model_type", "umt5");
  read_size(f, "vocab_size", c.vocab_size, int64_t{1} << 24);
  read_size(f, "d_model", c.width);
  read_size(f, "num_heads", c.heads, 4096);
  read_size(f, "d_kv", c.head_dim, 4096);
  read_size(f, "d_ff", c.ffn_width);
  read_size(f, "num_layers", c.layers, 1000);
  f.read("layer_norm_epsilon", c.eps);
  if (!(c.eps >= 0 && c.eps < 1)) f.problem(fmt::format("layer_norm_epsilon is {}, expected 0 to 1", c.eps));
  expect(f, "relative_attention_num_buckets", kRelativeBuckets);
  expect(f, "relative_attention_max_distance", 128);
  expect(f, "feed_forward_proj", "gated-gelu");
  f.finish();
  return c;
}

Umt5Config read_umt5_config(const std::string& path) { return umt5_config(read_json(path, kMaxConfigBytes), path); }

}  // namespace megaslide
