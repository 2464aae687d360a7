#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm/rms_norm.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/simd-inl.h"

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void Rows(T* y, const float* x, const float* w, int64_t rows, int64_t width, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    RowSum square;
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      const auto v = hn::LoadU(d, x + c);
      square.at(d) = hn::MulAdd(v, v, square.at(d));
    });
    const float rstd = 1.0f / std::sqrt(square.total() / static_cast<float>(width) + eps);
    ForEach(width, [&](auto d, int64_t c) HWY_ATTR {
      StoreFloat(hn::Mul(hn::LoadU(d, w + c), hn::Mul(hn::LoadU(d, x + c), hn::Set(d, rstd))), d, y + c);
    });
  }
}

void RmsNormRows(void* y, int64_t offset, DType dtype, const float* x, const float* w, int64_t rows, int64_t width,
                 float eps) {
  if (dtype == DType::kBF16)
    Rows(static_cast<bf16*>(y) + offset, x, w, rows, width, eps);
  else
    Rows(static_cast<float*>(y) + offset, x, w, rows, width, eps);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(RmsNormRows);

namespace cpu {

void rms_norm_forward(Stream& stream, void* y, const float* x, const float* w, int64_t rows, int64_t width, float eps,
                      DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(RmsNormRows);
  stream.parallel_for(rows, rows_grain(width), [&](int64_t begin, int64_t end) {
    run(y, begin * width, dtype, x + begin * width, w, end - begin, width, eps);
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
