// Parameter indices of the parts of the Wan transformer, in slab order.
#pragma once
#include <cstddef>
#include <vector>

#include "config/model_config.h"
#include "model/wan_module.h"

namespace megaslide {

// The vectors that a block reads in fp32 come first and together. Those of deformable attention exist in `dsa` blocks
// only and come last, so that the others lie alike in all kinds of blocks; the motion term's exist where it is on.
enum WanBlockParam : size_t {
  kTable,
  kNorm2Weight,
  kNorm2Bias,
  kSelfNormQ,
  kSelfNormK,
  kCrossNormQ,
  kCrossNormK,
  kSelfQ,
  kSelfQBias,
  kSelfK,
  kSelfKBias,
  kSelfV,
  kSelfVBias,
  kSelfOut,
  kSelfOutBias,
  kCrossQ,
  kCrossQBias,
  kCrossK,
  kCrossKBias,
  kCrossV,
  kCrossVBias,
  kCrossOut,
  kCrossOutBias,
  kFfnUp,
  kFfnUpBias,
  kFfnDown,
  kFfnDownBias,
  kOffsetConv,
  kOffsetConvBias,
  kOffsetNormWeight,
  kOffsetNormBias,
  kOffsetLinear,
  kOffsetLinearBias,
  kMotionProjection,
  kMotionBeta,
  kMotionGain,
};
// Of the pooled branch, where it is on, behind all of them.
inline size_t pooled_gate_param(const DsaLayer& dsa) { return dsa.motion ? kMotionGain + 1 : kOffsetLinearBias + 1; }

enum WanBlockMatrix : size_t {
  kMatSelfQ,
  kMatSelfK,
  kMatSelfV,
  kMatSelfOut,
  kMatCrossQ,
  kMatCrossK,
  kMatCrossV,
  kMatCrossOut,
  kMatFfnUp,
  kMatFfnDown,
  kMatOffset,
  kMatMotion,
};

enum WanEmbeddingParam : size_t {
  kPatch,
  kPatchBias,
  kTime1,
  kTime1Bias,
  kTime2,
  kTime2Bias,
  kTimeProjection,
  kTimeProjectionBias,
  kText1,
  kText1Bias,
  kText2,
  kText2Bias,
};
enum WanEmbeddingMatrix : size_t { kMatPatch, kMatText1, kMatText2 };

enum WanHeadParam : size_t { kHeadTable, kHeadWeight, kHeadBias };
enum WanHeadMatrix : size_t { kMatHead };

std::vector<WanMatrix> wan_block_matrices(const ModelConfig& config, int64_t layer);
std::vector<WanMatrix> wan_embedding_matrices(const ModelConfig& config);
std::vector<WanMatrix> wan_head_matrices(const ModelConfig& config);


}  // namespace megaslide
