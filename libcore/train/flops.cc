#include "train/flops.h"

#include <algorithm>

namespace megaslide {
namespace {

// Keys that one query attends to in self-attention, in the mean of the heads.
double keys_per_query(const ModelConfig& c, int64_t layer, const BatchShape& s) {
  const double all = static_cast<double>(s.tokens());
  auto within = [&](const std::array<int64_t, 3>& extent) {
    return static_cast<double>(std::min(extent[0], s.frames) * std::min(extent[1], s.height) * std::min(extent[2], s.width));
  };
  switch (c.attention.of_layer(layer)) {
    case AttentionKind::kDense:
    case AttentionKind::kDenseMaterialised: return all;
    case AttentionKind::kWindow: return within(c.attention.window);
    case AttentionKind::kDsa: {
      double keys = 0;
      for (const DsaHeads& run : c.attention.dsa.layer(layer, c.heads).runs) keys += within(run.kernel) * static_cast<double>(run.count);
      return keys / static_cast<double>(c.heads);
    }
  }
  return all;
}

// What a token's offsets and its pooled branch cost (spec dsa.md §1, §5).
double deformable_flops(const ModelConfig& c, int64_t layer, const BatchShape& s) {
  const DsaLayer dsa = c.attention.dsa.layer(layer, c.heads);
  const auto d = static_cast<double>(c.dim);
  double flops = 54 * d + 2 * d * static_cast<double>(dsa.offset_outputs());
  const bool searches = dsa.motion && !dsa.given;
  if (searches) flops += 32 * d;
  for (const DsaHeads& run : dsa.runs)
    if (searches && run.mode != DsaMode::kRigid) flops += 81 * (32 + 4 + 10) * static_cast<double>(std::min(run.kernel[0], s.frames) - 1);
  if (dsa.pooled) {
    const auto tiles = [](int64_t length) { return static_cast<double>((length + 3) / 4); };  // NOLINT(bugprone-integer-division): whole tiles
    const double pooled = tiles(s.frames) * tiles(s.height) * tiles(s.width);
    flops += 5 * d + 4 * d * pooled * pooled / static_cast<double>(s.tokens());
  }
  return flops;
}

}  // namespace

double forward_flops(const ModelConfig& c, const BatchShape& s) {
  const auto d = static_cast<double>(c.dim), f = static_cast<double>(c.ffn_dim), text = static_cast<double>(c.text_dim);
  const auto rows = static_cast<double>(s.rows()), batch = static_cast<double>(s.batch);
  const double context = batch * static_cast<double>(s.context_rows);
  double flops = 2 * rows * 4 * static_cast<double>(c.in_channels + c.out_channels) * d;
  flops += 2 * context * (text * d + d * d);
  flops += 2 * batch * (static_cast<double>(c.freq_dim) * d + d * d + 6 * d * d);
  for (int64_t l = 0; l < c.layers; ++l) {
    flops += 2 * rows * (6 * d * d + 2 * d * f) + 2 * context * 2 * d * d;
    flops += 4 * d * rows * (keys_per_query(c, l, s) + static_cast<double>(s.context_rows));
    if (c.attention.of_layer(l) == AttentionKind::kDsa) flops += rows * deformable_flops(c, l, s);
  }
  return flops;
}

}  // namespace megaslide
