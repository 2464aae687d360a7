// A codec without training: RGB to Y'CbCr, two orthonormal Haar levels along t, h and w, and of the 192 coefficients of
// a 4×4×4 block the 16 that matter most. It stands in for a VAE where nothing is downloaded.
//
// Colour (BT.601, floats): Y = 0.299 R + 0.587 G + 0.114 B, Cb = (B-Y)/1.772, Cr = (R-Y)/1.402; all in [-1, 1].
// Along an axis the two levels give four orthonormal functions on four samples, here numbered by what they contain:
//   0 neither  (+ + + +)/2     1 level 2  (+ + - -)/2     2 level 1  (+ - + -)/2     3 both  (+ - - +)/2
// F = 4k+1 frames: the first is repeated three times in front, as a causal VAE sees it; decoding drops those three.
#pragma once
#include <array>

#include "model/video_codec.h"

namespace megaslide {

struct HaarChannel {
  int plane;       // 0 Y, 1 Cb, 2 Cr
  int t, h, w;     // function number along each axis
  float mean, deviation;
};
inline constexpr int kHaarChannels = 16;

// Means and deviations: about those of natural video at 64×64 (measured on tests/data/clips and rounded).
inline constexpr std::array<HaarChannel, kHaarChannels> kHaarTable = {{
    {0, 0, 0, 0, 0.0f, 3.2f},
    {0, 0, 1, 0, 0.0f, 0.65f},   // level 2: h
    {0, 0, 0, 1, 0.0f, 0.55f},   // w
    {0, 1, 0, 0, 0.0f, 0.35f},   // t
    {0, 0, 1, 1, 0.0f, 0.26f},   // hw
    {0, 1, 0, 1, 0.0f, 0.16f},   // wt
    {0, 0, 2, 0, 0.0f, 0.27f},   // level 1: h
    {0, 0, 0, 2, 0.0f, 0.26f},   // w
    {0, 0, 3, 0, 0.0f, 0.26f},   // levels 2 and 1: hh
    {0, 0, 0, 3, 0.0f, 0.26f},   // ww
    {0, 0, 3, 1, 0.0f, 0.155f},  // hwh
    {0, 0, 1, 3, 0.0f, 0.15f},   // hww
    {1, 0, 0, 0, -0.6f, 1.05f},
    {1, 0, 1, 0, 0.0f, 0.155f},
    {1, 0, 0, 1, 0.0f, 0.12f},
    {2, 0, 0, 0, -0.1f, 0.4f},
}};

class HaarCodec final : public VideoCodec {
 public:
  std::string identity() const override { return "haar-1"; }
  int64_t channels() const override { return kHaarChannels; }
  int64_t spatial_stride() const override { return 4; }
  int64_t temporal_stride() const override { return 4; }
  // logvar is the constant kLogVariance: the encoder is deterministic.
  Encoded encode_moments(ThreadPool& pool, const TensorView& video) const override;
  HostTensor decode(ThreadPool& pool, const TensorView& latent) const override;

  static constexpr float kLogVariance = -30.0f;  // where samplers clamp it: a deviation of 3e-7
};

}  // namespace megaslide
