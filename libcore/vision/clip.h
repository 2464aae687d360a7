// CLIP (Radford et al. 2021) as published by OpenAI: ViT-B/32 for background_consistency and appearance_style, ViT-L/14 for
// aesthetic_quality (spec vbench.md). QuickGELU, LayerNorm eps 1e-5; the networks differ by the shapes in their files alone. The
// weights are under the MIT License.
//
// Files: OpenAI's names (visual.transformer.resblocks.0.attn.in_proj_weight) or Hugging Face's CLIPModel (vision_model.encoder.layers.0.
// self_attn.q_proj.weight, `pre_layrnorm` as it is spelled there), with or without `position_ids`.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "vision/patch_embedding.h"
#include "vision/text_tower.h"

namespace megaslide {

enum class ClipTowers { kImage, kImageAndText };

class ClipNetwork {
 public:
  // Throws Error that lists every tensor that is missing, unknown or of another shape, whichever towers are wanted. compute: kF32 or kBF16
  // (products of the blocks and the patches only). Without its text tower a ViT-L/14 takes 0.5 GB less.
  static ClipNetwork load(const Place& place, const NetworkWeights& file, DType compute = DType::kF32, ClipTowers towers = ClipTowers::kImageAndText);

  int64_t image_size() const { return image_size_; }  // S, of the side of a picture
  int64_t embed() const { return projection_.outputs(); }
  // Of the text tower; CHECK that it was loaded.
  int64_t context() const { return text().context(); }
  int64_t vocabulary() const { return text().vocabulary(); }
  // logits = logit_scale · cosine. The file holds its logarithm.
  double logit_scale() const { return logit_scale_; }

  // pixels: F32 [3,S,S], or [N,3,S,S] for several pictures, normalised with CLIP's mean and deviation. Gives F32 [N, embed], not
  // normalised. The last bits of a picture's feature depend on how many are given with it, on nothing else. Throws Error for another size.
  HostTensor image_features(const Place& place, const HostTensor& pixels) const;
  // ids as TextTower::feature takes them. Gives F32 [embed], not normalised. CHECK that the text tower was loaded.
  HostTensor text_features(const Place& place, const std::vector<int64_t>& ids) const { return text().feature(place, ids); }

 private:
  ClipNetwork() = default;
  const TextTower& text() const {
    MS_CHECK(text_.has_value(), "a CLIP without its text tower");
    return *text_;
  }

  int64_t image_size_ = 0;
  double logit_scale_ = 0;
  PatchEmbedding embedding_;
  PlacedTensor places_;  // (1 + g², width), the class token in row 0
  AffineNorm before_, after_;
  Transformer transformer_;
  PackedLinear projection_;  // fp32
  std::optional<TextTower> text_;
};

}  // namespace megaslide
