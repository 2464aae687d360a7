// The config.json of a Wan video autoencoder in diffusers' form (AutoencoderKLWan; spec wan.md C.1, C.7).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace megaslide {

struct WanVaeConfig {
  int64_t z_dim = 16, base_dim = 96, decoder_base_dim = 96, num_res_blocks = 2;
  std::vector<int64_t> dim_mult = {1, 2, 4, 4};
  std::vector<bool> temporal_downsample = {false, true, true};  // "temperal_downsample" in the file
  bool residual = false;                                        // the 2.2 kind: shortcuts around whole stages
  int64_t patch = 1;                                            // pixels a cell before the first convolution
  std::vector<float> latents_mean, latents_std;                 // z_dim of each

  int64_t pixel_channels() const { return 3 * patch * patch; }
  int64_t spatial_stride() const;
  int64_t temporal_stride() const;
};

// Absent keys have diffusers' defaults, keys that say nothing of shapes are left alone. Throws a usage Error that lists
// everything wrong; sizes are bounded, so that a config alone never asks for much memory.
WanVaeConfig wan_vae_config(const nlohmann::json& json, const std::string& source);
WanVaeConfig read_wan_vae_config(const std::string& path);

}  // namespace megaslide
