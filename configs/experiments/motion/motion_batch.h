// Clips held out of training, noised, with what is known about each token: what models are measured on.
//
// A file holds, for B = clips × noise levels samples, the noise level running fastest:
//   latent F32 (B,C,T,2H,2W), timesteps F32 (B), text F32 (B,S,D)   what finetune --probe reads, one forward pass of it
//   velocity F32 (B,C,T,2H,2W)                                      what the network should answer
//   surface U8 (B,T,H,W), kind U8 (B,T,H,W)                         what a token shows; 0 background, 1 slow, 2 fast
//   displacement F32 (B,T,H,W,T,2)                                  where it goes, in tokens
// Tokens of a clip are those of TokenGrid (motion_scene.h).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "io/safetensors.h"

namespace megaslide {

enum class TokenKind : uint8_t { kBackground, kSlow, kFast };
inline constexpr const char* kTokenKinds[] = {"background", "slow", "fast"};
inline constexpr double kNoiseLevels[] = {0.1, 0.3, 0.5, 0.7, 0.9};

// From the cache of a folder of make-motion-clips (--token) and that folder. A sprite is fast where it moves a token or
// more from one latent frame to the next. Noise is a function of `seed` and the clip's place in the cache.
void write_motion_batch(const std::string& path, const std::string& cache, const std::string& folder, const ModelConfig& model, uint64_t seed);

// The file, mapped. Sizes are checked against each other once, here.
class MotionBatch {
 public:
  static MotionBatch open(const std::string& path);

  int64_t samples() const { return samples_; }
  int64_t clips() const { return samples_ / std::ssize(kNoiseLevels); }
  int64_t channels() const { return latent_shape_[0]; }
  int64_t frames() const { return latent_shape_[1]; }
  int64_t height() const { return latent_shape_[2] / 2; }
  int64_t width() const { return latent_shape_[3] / 2; }
  int64_t tokens() const { return frames() * height() * width(); }
  const Shape& latent_shape() const { return latent_shape_; }  // (C,T,2H,2W)

  double sigma(int64_t sample) const;
  std::span<const float> latent(int64_t sample) const { return floats("latent", sample); }
  std::span<const float> velocity(int64_t sample) const { return floats("velocity", sample); }
  std::span<const float> displacement(int64_t sample) const { return floats("displacement", sample); }
  std::span<const uint8_t> surface(int64_t sample) const { return bytes("surface", sample); }
  std::span<const uint8_t> kind(int64_t sample) const { return bytes("kind", sample); }
  // x − σ·v: the clip where v is the truth, what a model makes of it where v is the model's.
  std::vector<float> clean(int64_t sample, std::span<const float> velocity) const;

 private:
  std::span<const float> floats(const char* tensor, int64_t sample) const;
  std::span<const uint8_t> bytes(const char* tensor, int64_t sample) const;

  explicit MotionBatch(SafetensorsFile file) : file_(std::move(file)) {}
  SafetensorsFile file_;
  int64_t samples_ = 0;
  Shape latent_shape_;
};

}  // namespace megaslide
