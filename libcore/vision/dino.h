// DINO ViT-B/16 (Caron et al. 2021), the network of subject_consistency (spec vbench.md): GELU by the error function, LayerNorm eps
// 1e-6. Widths and depth come from the file. The published weights are under the Apache License 2.0.
//
// Files: the names of torch.hub (blocks.0.attn.qkv.weight) or of Hugging Face's ViTModel (encoder.layer.0.attention.attention.query.weight,
// with or without a pooler, which is not used).
#pragma once
#include <string>

#include "vision/patch_embedding.h"
#include "vision/transformer.h"

namespace megaslide {

class DinoNetwork {
 public:
  // Throws Error that lists every tensor that is missing, unknown or of another shape. compute: kF32 or kBF16 (products only).
  static DinoNetwork load(const Place& place, const NetworkWeights& file, DType compute = DType::kF32);

  int64_t width() const { return embedding_.width(); }
  int64_t patch() const { return embedding_.side(); }

  // pixels: F32 [3,H,W], or [N,3,H,W] for several pictures of one size, normalised (mean and deviation of ImageNet); rows and columns
  // beyond whole patches are not read. Gives the class token after the last norm, F32 [N, width], not normalised. The last bits of
  // a picture's feature depend on how many are given with it, on nothing else. Throws Error for pictures smaller than a patch.
  HostTensor features(const Place& place, const HostTensor& pixels) const;

  // The places of a picture of `rows` × `columns` patches, F32 [rows·columns, width]: the stored table resized, bicubic with
  // a = −0.75, source (i + ½)·g/(n + 0.1) − ½ for n places out of g, borders repeated.
  HostTensor resized_places(int64_t rows, int64_t columns) const;

 private:
  DinoNetwork() = default;
  HostTensor places(int64_t height, int64_t width) const;

  PatchEmbedding embedding_;
  HostTensor class_token_, table_;  // [width], [1 + g², width]
  int64_t grid_ = 0;                // g
  Transformer transformer_;
  AffineNorm norm_;
};

}  // namespace megaslide
