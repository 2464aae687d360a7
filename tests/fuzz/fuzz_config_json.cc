// The config.json beside a transformer, an autoencoder and a text encoder.
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/wan_config_json.h"
#include "model/umt5_config.h"
#include "model/wan_vae_config.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

namespace {

void transformer(std::string_view text) {
  ModelConfig c;
  c.dim = 1536, c.layers = 30;
  if (!fuzz::accepts([&] { merge_wan_config_json(text, "config.json", c); })) return;
  MS_CHECK(c.dim == 1536 && c.layers == 30 && c.heads >= 0 && c.ffn_dim >= 0 && c.in_channels > 0 && c.text_len > 0);
  fuzz::accepts([&] { validate(c); });
}

void autoencoder(std::string_view text) {
  WanVaeConfig c;
  if (!fuzz::accepts([&] { c = wan_vae_config(parse_json(text, "config.json"), "config.json"); })) return;
  MS_CHECK(c.dim_mult.size() == c.temporal_downsample.size() + 1 && c.latents_mean.size() == static_cast<size_t>(c.z_dim) &&
           c.latents_std.size() == static_cast<size_t>(c.z_dim));
  MS_CHECK(c.spatial_stride() >= 1 && c.spatial_stride() <= 256 && c.temporal_stride() >= 1);
  for (const float s : c.latents_std) MS_CHECK(s > 0);
}

void text_encoder(std::string_view text) {
  Umt5Config c;
  if (!fuzz::accepts([&] { c = umt5_config(parse_json(text, "config.json"), "config.json"); })) return;
  MS_CHECK(c.vocab_size >= 1 && c.width >= 1 && c.inner() >= 1 && c.layers >= 1 && c.layers <= 1000 && c.eps >= 0 && c.eps < 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  transformer(text);
  autoencoder(text);
  text_encoder(text);
  return 0;
}
