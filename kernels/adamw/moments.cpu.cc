// Arrays of moments from and to fp32.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/adamw/adamw.h"
#include "kernels/adamw/codec_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/moments.cpu.cc"
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"
#include "kernels/adamw/codecs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

void to_bf16_piece(bf16* out, const float* in, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR { StoreFloat(LoadFloat(d, in + i), d, out + i); });
}
void from_bf16_piece(float* out, const bf16* in, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR { StoreFloat(LoadFloat(d, in + i), d, out + i); });
}

// A block of m or, where kRoot, of v.
template <bool kRoot, class T>
HWY_INLINE void EncodeBlock(T* out, float& scale, const float* in, int64_t n) {
  uint32_t top = 0;
  alignas(64) float x[kMomentBlock];
  int64_t i = 0;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(Words());
  for (; i + lanes <= n; i += lanes) {
    const auto value = kRoot ? hn::Sqrt(hn::LoadU(d, in + i)) : hn::LoadU(d, in + i);
    hn::StoreU(value, d, x + i);
    largest = hn::Max(largest, MagnitudeBits(value));
  }
  top = Largest(largest);
#endif
  for (; i < n; ++i) {
    x[i] = kRoot ? std::sqrt(in[i]) : in[i];
    top = std::max(top, adamw::magnitude_bits(x[i]));
  }
  scale = adamw::scale_of(top, kRoot ? adamw::kSmallestVScale : adamw::kSmallestMScale);
  const float factor = adamw::level_factor(scale, kRoot ? adamw::kVTop : adamw::kMTop);
  if (factor == 0) {
    std::fill_n(out, n, T{0});
    return;
  }
  i = 0;
#if MEGASLIDE_ADAMW_SIMD
  for (; i + lanes <= n; i += lanes)
    if constexpr (kRoot)
      StoreLevels(VLevel(hn::LoadU(d, x + i), hn::Set(d, factor)), out + i);
    else
      StoreLevels(MLevel(hn::LoadU(d, x + i), hn::Set(d, factor)), reinterpret_cast<uint8_t*>(out) + i);
#endif
  for (; i < n; ++i)
    if constexpr (kRoot)
      out[i] = adamw::v_level(x[i], factor);
    else
      out[i] = adamw::m_level(x[i], factor);
}

template <bool kRoot, class T>
HWY_INLINE void DecodeBlock(float* out, const T* in, float scale, int64_t n) {
  int64_t i = 0;
#if MEGASLIDE_ADAMW_SIMD
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; i + lanes <= n; i += lanes)
    if constexpr (kRoot)
      hn::StoreU(Canonical(LoadV(in + i, hn::Set(d, scale))), d, out + i);
    else
      hn::StoreU(Canonical(LoadM(in + i, hn::Set(d, scale))), d, out + i);
#endif
  for (; i < n; ++i)
    if constexpr (kRoot)
      out[i] = adamw::canonical(v_value(in[i], scale));
    else
      out[i] = adamw::canonical(m_value(in[i], scale));
}

void encode_m_block(int8_t* out, float* scale, const float* in, int64_t n) { EncodeBlock<false>(out, *scale, in, n); }
void encode_v_block(uint8_t* out, float* scale, const float* in, int64_t n) { EncodeBlock<true>(out, *scale, in, n); }
void decode_m_block(float* out, const int8_t* in, float scale, int64_t n) { DecodeBlock<false>(out, in, scale, n); }
void decode_v_block(float* out, const uint8_t* in, float scale, int64_t n) { DecodeBlock<true>(out, in, scale, n); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(to_bf16_piece);
HWY_EXPORT(from_bf16_piece);
HWY_EXPORT(encode_m_block);
HWY_EXPORT(encode_v_block);
HWY_EXPORT(decode_m_block);
HWY_EXPORT(decode_v_block);

namespace {
constexpr int64_t kPiece = 65536;
static_assert(kPiece % kMomentBlock == 0);

// fp32 and bf16, which are the same for m and v.
void encode_plainly(ThreadPool& pool, MomentCodec codec, void* out, const float* in, int64_t n) {
  const auto piece = HWY_DYNAMIC_DISPATCH(to_bf16_piece);
  pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) {
    if (codec == MomentCodec::kBf16)
      piece(static_cast<bf16*>(out) + begin, in + begin, end - begin);
    else
      std::copy(in + begin, in + end, static_cast<float*>(out) + begin);
  });
}
void decode_plainly(ThreadPool& pool, MomentCodec codec, float* out, const void* in, int64_t n) {
  const auto piece = HWY_DYNAMIC_DISPATCH(from_bf16_piece);
  pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) {
    if (codec == MomentCodec::kBf16)
      piece(out + begin, static_cast<const bf16*>(in) + begin, end - begin);
    else
      std::copy(static_cast<const float*>(in) + begin, static_cast<const float*>(in) + end, out + begin);
  });
}

// body(block, begin, n) for every block.
template <class Body>
void for_blocks(ThreadPool& pool, int64_t n, Body body) {
  pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kMomentBlock) body(i / kMomentBlock, i, std::min(kMomentBlock, end - i));
  });
}
}  // namespace

void encode_m(ThreadPool& pool, MomentCodec codec, void* m, float* scale, const float* in, int64_t n) {
  if (codec != MomentCodec::kInt8) return encode_plainly(pool, codec, m, in, n);
  const auto one = HWY_DYNAMIC_DISPATCH(encode_m_block);
  for_blocks(pool, n, [&](int64_t block, int64_t begin, int64_t count) {
    one(static_cast<int8_t*>(m) + begin, scale + block, in + begin, count);
  });
}

void encode_v(ThreadPool& pool, MomentCodec codec, void* v, float* scale, const float* in, int64_t n) {
  if (codec != MomentCodec::kInt8) return encode_plainly(pool, codec, v, in, n);
  const auto one = HWY_DYNAMIC_DISPATCH(encode_v_block);
  for_blocks(pool, n, [&](int64_t block, int64_t begin, int64_t count) {
    one(static_cast<uint8_t*>(v) + begin, scale + block, in + begin, count);
  });
}

void decode_m(ThreadPool& pool, MomentCodec codec, float* out, const void* m, const float* scale, int64_t n) {
  if (codec != MomentCodec::kInt8) return decode_plainly(pool, codec, out, m, n);
  const auto one = HWY_DYNAMIC_DISPATCH(decode_m_block);
  for_blocks(pool, n, [&](int64_t block, int64_t begin, int64_t count) {
    one(out + begin, static_cast<const int8_t*>(m) + begin, scale[block], count);
  });
}

void decode_v(ThreadPool& pool, MomentCodec codec, float* out, const void* v, const float* scale, int64_t n) {
  if (codec != MomentCodec::kInt8) return decode_plainly(pool, codec, out, v, n);
  const auto one = HWY_DYNAMIC_DISPATCH(decode_v_block);
  for_blocks(pool, n, [&](int64_t block, int64_t begin, int64_t count) {
    one(out + begin, static_cast<const uint8_t*>(v) + begin, scale[block], count);
  });
}

}  // namespace megaslide
#endif
