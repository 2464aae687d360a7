// ViCLIP-L/14 (Wang et al. 2023, InternVid), the network of overall_consistency and temporal_style (spec vbench-networks.md §1): a video
// tower whose tokens, of all frames together, attend to each other, and a text tower. QuickGELU, LayerNorm eps 1e-5; widths, depths and
// the number of frames come from the file. The code is under the Apache License 2.0.
//
// File: the entry `model` of ViClip-InternVid-10M-FLT.pth under its own names (vision_encoder.conv1.weight of rank 5, `temp`).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "vision/patch_embedding.h"
#include "vision/text_tower.h"

namespace megaslide {

class ViclipNetwork {
 public:
  // Throws Error that lists every tensor that is missing, unknown or of another shape. compute: kF32 or kBF16 (products of the blocks
  // and the patches only).
  static ViclipNetwork load(const Place& place, const NetworkWeights& file, DType compute = DType::kF32);

  int64_t image_size() const { return image_size_; }  // S, of the side of a picture
  int64_t frames() const { return frames_; }          // of a clip
  int64_t embed() const { return text_.embed(); }
  int64_t context() const { return text_.context(); }
  int64_t vocabulary() const { return text_.vocabulary(); }

  // pixels: F32 [frames,3,S,S] of one clip (frame_choice.h: middle_frames), normalised with CLIP's mean and deviation. Gives F32 [embed], not normalised. Scores are
  // never held: at ViCLIP's width memory is 40 MB for its tokens' rows and 16 MB for hidden ones. Throws Error for another shape.
  HostTensor video_features(const Place& place, const HostTensor& pixels) const;
  // ids as TextTower::feature takes them, of 32 at most. Gives F32 [embed], not normalised.
  HostTensor text_features(const Place& place, const std::vector<int64_t>& ids) const { return text_.feature(place, ids); }

  // For tests: the tokens (class first, then frame by frame, row-major) after the first norm, and Transformer::forward's.
  struct Observers {
    std::function<void(const HostTensor&)> tokens;
    Transformer::Observer blocks;
  };
  HostTensor video_features(const Place& place, const HostTensor& pixels, const Observers& observers) const;

 private:
  ViclipNetwork() = default;

  int64_t image_size_ = 0, frames_ = 0;
  PatchEmbedding embedding_;
  PlacedTensor places_;  // (1 + frames·g², width): the class token, then the place and the time of every patch
  AffineNorm before_, after_;
  Transformer transformer_;
  PackedLinear projection_;  // fp32
  TextTower text_;
};

}  // namespace megaslide
