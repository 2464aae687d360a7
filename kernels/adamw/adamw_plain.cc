#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/adamw/adamw_math.h"

namespace megaslide::plain {
namespace {
float element(const void* p, DType dtype, int64_t i) {
  return dtype == DType::kBF16 ? to_float(static_cast<const bf16*>(p)[i]) : static_cast<const float*>(p)[i];
}

// Moments of [begin, end), at most a block, in fp32 between decoding and encoding.
struct Moments {
  float m[kMomentBlock], v[kMomentBlock];
};

uint32_t largest(const float* x, int64_t n) {
  uint32_t top = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, adamw::magnitude_bits(x[i]));
  return top;
}
uint32_t largest_root(const float* v, int64_t n) {
  uint32_t top = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, adamw::magnitude_bits(std::sqrt(v[i])));
  return top;
}

void encode_stochastic(const AdamWState& s, const Moments& x, int64_t begin, int64_t n, const AdamWStep& step) {
  const auto random = [&](RandomPurpose purpose, int64_t i) {
    return adamw::rounding_bits(step, purpose, step.first + static_cast<uint64_t>(begin + i));
  };
  if (s.moments == MomentCodec::kFp32) {
    std::memcpy(static_cast<float*>(s.m) + begin, x.m, static_cast<size_t>(n) * sizeof(float));
    std::memcpy(static_cast<float*>(s.v) + begin, x.v, static_cast<size_t>(n) * sizeof(float));
  } else if (s.moments == MomentCodec::kBf16) {
    for (int64_t i = 0; i < n; ++i) {
      static_cast<bf16*>(s.m)[begin + i] = adamw::round_stochastic(x.m[i], random(RandomPurpose::kMomentRounding, i));
      static_cast<bf16*>(s.v)[begin + i] = adamw::round_stochastic(x.v[i], random(RandomPurpose::kVarianceRounding, i));
    }
  } else {
    float& m_scale = s.m_scale[begin / kMomentBlock];
    float& v_scale = s.v_scale[begin / kMomentBlock];
    m_scale = adamw::scale_of(largest(x.m, n), adamw::kSmallestMScale);
    v_scale = adamw::scale_of(largest_root(x.v, n), adamw::kSmallestVScale);
    const float m_factor = adamw::level_factor(m_scale, adamw::kMTop);
    const float v_factor = adamw::level_factor(v_scale, adamw::kVTop);
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t bits = random(RandomPurpose::kMomentRounding, i);
      static_cast<int8_t*>(s.m)[begin + i] =
          m_factor > 0 ? adamw::m_level(x.m[i], m_factor, bits) : int8_t{0};
      static_cast<uint8_t*>(s.v)[begin + i] =
          v_factor > 0 ? adamw::v_level(std::sqrt(x.v[i]), v_factor, bits) : uint8_t{0};
    }
  }
}
}  // namespace

void adamw_update(const AdamWState& s, const void* gradient, DType gradient_dtype, int64_t n, const AdamWStep& step) {
  const adamw::Coefficients c(step);
  Moments x;
  for (int64_t begin = 0; begin < n; begin += kMomentBlock) {
    const int64_t count = std::min(kMomentBlock, n - begin), width = moment_bytes(s.moments, 1);
    const int64_t block = begin / kMomentBlock;
    const bool scaled = s.moments == MomentCodec::kInt8;
    decode_m(s.moments, x.m, static_cast<const std::byte*>(s.m) + begin * width, scaled ? s.m_scale + block : nullptr,
             count);
    decode_v(s.moments, x.v, static_cast<const std::byte*>(s.v) + begin * width, scaled ? s.v_scale + block : nullptr,
             count);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t i = begin + k;
      const float old = s.masters == MasterCodec::kSplit  ? join_master(s.w[i], s.r[i])
                        : s.masters == MasterCodec::kFp32 ? s.p[i]
                                                          : to_float(s.w[i]);
      const float p = adamw::update(c, old, x.m[k], x.v[k], element(gradient, gradient_dtype, i));
      if (s.masters == MasterCodec::kBf16Sr) {
        const auto random = adamw::rounding_bits(step, RandomPurpose::kRounding, step.first + static_cast<uint64_t>(i));
        s.w[i] = adamw::round_stochastic(p, random);
      } else if (s.masters == MasterCodec::kSplit) {
        s.w[i] = master_weight(p);
        s.r[i] = master_remainder(p);
      } else {
        s.p[i] = p;
        if (s.w) s.w[i] = master_weight(p);
      }
    }
    encode_stochastic(s, x, begin, count, step);
  }
}

void encode_m(MomentCodec codec, void* m, float* scale, const float* in, int64_t n) {
  if (codec == MomentCodec::kFp32) std::memcpy(m, in, static_cast<size_t>(n) * sizeof(float));
  if (codec == MomentCodec::kBf16)
    for (int64_t i = 0; i < n; ++i) static_cast<bf16*>(m)[i] = to_bf16(in[i]);
  if (codec != MomentCodec::kInt8) return;
  for (int64_t b = 0; b < moment_blocks(n); ++b) {
    const int64_t begin = b * kMomentBlock, end = std::min(n, begin + kMomentBlock);
    scale[b] = adamw::scale_of(largest(in + begin, end - begin), adamw::kSmallestMScale);
    const float factor = adamw::level_factor(scale[b], adamw::kMTop);
    for (int64_t i = begin; i < end; ++i)
      static_cast<int8_t*>(m)[i] = factor > 0 ? adamw::m_level(in[i], factor) : int8_t{0};
  }
}

void encode_v(MomentCodec codec, void* v, float* scale, const float* in, int64_t n) {
  if (codec != MomentCodec::kInt8) return encode_m(codec, v, nullptr, in, n);
  for (int64_t b = 0; b < moment_blocks(n); ++b) {
    const int64_t begin = b * kMomentBlock, end = std::min(n, begin + kMomentBlock);
    scale[b] = adamw::scale_of(largest_root(in + begin, end - begin), adamw::kSmallestVScale);
    const float factor = adamw::level_factor(scale[b], adamw::kVTop);
    for (int64_t i = begin; i < end; ++i)
      static_cast<uint8_t*>(v)[i] = factor > 0 ? adamw::v_level(std::sqrt(in[i]), factor) : uint8_t{0};
  }
}

void decode_m(MomentCodec codec, float* out, const void* m, const float* scale, int64_t n) {
  if (codec == MomentCodec::kFp32) std::memcpy(out, m, static_cast<size_t>(n) * sizeof(float));
  if (codec == MomentCodec::kBf16)
    for (int64_t i = 0; i < n; ++i) out[i] = to_float(static_cast<const bf16*>(m)[i]);
  if (codec == MomentCodec::kInt8)
    for (int64_t i = 0; i < n; ++i)
      out[i] = adamw::canonical(m_value(static_cast<const int8_t*>(m)[i], scale[i / kMomentBlock]));
}

void decode_v(MomentCodec codec, float* out, const void* v, const float* scale, int64_t n) {
  if (codec != MomentCodec::kInt8) return decode_m(codec, out, v, nullptr, n);
  for (int64_t i = 0; i < n; ++i)
    out[i] = adamw::canonical(v_value(static_cast<const uint8_t*>(v)[i], scale[i / kMomentBlock]));
}

double squared_norm(const void* gradient, DType gradient_dtype, int64_t n) {
  std::vector<double> leaves;
  for (int64_t begin = 0; begin < n; begin += adamw::kNormBlock) {
    double lanes[adamw::kNormLanes] = {};
    for (int64_t i = begin; i < std::min(n, begin + adamw::kNormBlock); ++i) {
      const auto g = static_cast<double>(element(gradient, gradient_dtype, i));
      lanes[(i - begin) % adamw::kNormLanes] += g * g;  // the product of two fp32 numbers is exact in fp64
    }
    leaves.push_back(adamw::add_lanes(lanes));
  }
  return adamw::add_leaves(leaves.data(), leaves.size());
}

}  // namespace megaslide::plain
