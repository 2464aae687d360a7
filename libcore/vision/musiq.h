// MUSIQ (Ke et al. 2021) trained on SPAQ, the network of imaging_quality, as pyiqa computes it (spec vbench-networks.md §2): patches
// of a frame at three sizes → convolutions → linear layer + position + scale → transformer → one number.
//
// File: musiq_spaq_ckpt-358bb6af under its own names. pyiqa, whose weights they are, is for non-commercial use (PolyForm
// Noncommercial, S-Lab License).
#pragma once
#include <cstdint>

#include "vision/musiq_stem.h"
#include "vision/transformer.h"

namespace megaslide {

class MusiqNetwork {
 public:
  static constexpr int64_t kPublishedHeads = 6;
  // Throws Error that lists every tensor that is missing, unknown or of another shape. `heads` is the one number that the file does
  // not hold.
  static MusiqNetwork load(const Place& place, const NetworkWeights& file, int64_t heads = kPublishedHeads);

  int64_t width() const { return embedding_.outputs(); }

  // Quality of a frame, about 0 … 100, not clamped. Throws Error for a frame that is too narrow (musiq_frame). fp32, sums of the norms
  // wider. Beside the weights some 50 MB, whatever the frame's size.
  double score(const Place& place, const Picture& picture) const;

  // The way there: patches' rows of the linear layer, F32 (N, width) …
  HostTensor embedding(const Place& place, const MusiqPatches& patches) const;
  // … the class token after the last norm, F32 (1, width), of the rows …
  HostTensor class_feature(const Place& place, const HostTensor& embedding, const MusiqPatches& patches) const;
  // … and its score.
  double score_of(const HostTensor& class_feature) const;

  const MusiqStem& stem() const { return stem_; }

 private:
  MusiqNetwork() = default;

  MusiqStem stem_;
  PackedLinear embedding_;
  HostTensor class_token_, positions_, scales_;  // [width], [100, width], [3, width]
  Transformer transformer_;
  AffineNorm norm_;
  HostTensor head_weight_, head_bias_;
};

}  // namespace megaslide
