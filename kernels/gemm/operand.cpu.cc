#include "kernels/gemm/operand.h"

#include <algorithm>
#include <cstring>

#include "kernels/gemm/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm/operand.cpu.cc"
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {

void widen(float* out, const bf16* in, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR { StoreFloat(LoadFloat(d, in + i), d, out + i); });
}

void narrow(bf16* out, const float* in, int64_t n) {
  ForEach(n, [&](auto d, int64_t i) HWY_ATTR { StoreFloat(LoadFloat(d, in + i), d, out + i); });
}

constexpr int64_t kSumRows = 64;

void column_sums(float* db, const float* dy, int64_t m, int64_t columns, int64_t stride) {
  for (int64_t m0 = 0; m0 < m; m0 += kSumRows) {
    const int64_t rows = std::min(kSumRows, m - m0);
    const float* block = dy + m0 * stride;
    ForEach(columns, [&](auto d, int64_t j) HWY_ATTR {
      auto sum = LoadFloat(d, block + j);
      for (int64_t r = 1; r < rows; ++r) sum = hn::Add(sum, LoadFloat(d, block + r * stride + j));
      StoreFloat(hn::Add(LoadFloat(d, db + j), sum), d, db + j);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(column_sums);

namespace gemm {
void widen_bf16(float* out, const bf16* in, int64_t n) { HWY_DYNAMIC_DISPATCH(widen)(out, in, n); }
void narrow_bf16(bf16* out, const float* in, int64_t n) { HWY_DYNAMIC_DISPATCH(narrow)(out, in, n); }
void add_column_sums(float* db, const float* dy, int64_t m, int64_t columns, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(column_sums)(db, dy, m, columns, stride);
}
}  // namespace gemm

namespace cpu {
constexpr int64_t kCastPiece = 65536;

void bias_gradient(Stream& stream, float* db, const float* dy, int64_t m, int64_t n) {
  // Pieces of whole cache lines; few columns of many rows are not worth sharing out.
  const int64_t columns = std::max<int64_t>(64, (kCastPiece / std::max<int64_t>(m, 1) + 63) / 64 * 64);
  stream.parallel_for(n, columns, [&](int64_t begin, int64_t end) {
    gemm::add_column_sums(db + begin, dy + begin, m, end - begin, n);
  });
}

void cast_operand(Stream& stream, void* out, const float* in, int64_t n, DType dtype) {
  MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype));
  stream.parallel_for(n, kCastPiece, [&](int64_t begin, int64_t end) {
    if (dtype == DType::kF32)
      std::memcpy(static_cast<float*>(out) + begin, in + begin, static_cast<size_t>(end - begin) * sizeof(float));
    else
      gemm::narrow_bf16(static_cast<bf16*>(out) + begin, in + begin, end - begin);
  });
}
}  // namespace cpu
}  // namespace megaslide
#endif
