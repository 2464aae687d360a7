// A network of two blocks whose sizes are no multiples of anything.
#pragma once
#include "config/model_config.h"

namespace megaslide::testing_support {

inline ModelConfig small_config(AttentionKind kind, DsaMode mode = DsaMode::kFull, DsaOffsets offsets = DsaOffsets::kNet,
                                bool pooled = false) {
  ModelConfig c;
  c.dim = 24;
  c.heads = 2;
  c.ffn_dim = 40;
  c.layers = 2;
  c.in_channels = c.out_channels = 4;
  c.text_dim = 10;
  c.freq_dim = 16;
  c.rope_max_seq_len = 32;
  c.attention.kind = kind;
  c.attention.window = {2, 3, 2};
  c.attention.dsa = {.kernel = {3, 3, 3}, .reach = {1, 2, 2}, .mode = mode, .groups = 2, .offsets = offsets, .pooled = pooled};
  return c;
}

}  // namespace megaslide::testing_support
