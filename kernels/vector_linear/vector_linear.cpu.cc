#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_linear/vector_linear.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"
#include "kernels/vector_linear/vector_linear.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void Forward(float* y, const float* x, const T* w, const T* bias, int64_t m, int64_t n, int64_t k, int64_t begin,
             int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      RowSum sum;
      ForEach(k, [&](auto d, int64_t c) HWY_ATTR {
        sum.at(d) = hn::MulAdd(hn::LoadU(d, x + i * k + c), LoadFloat(d, w + j * k + c), sum.at(d));
      });
      y[i * n + j] = sum.total() + to_float(bias[j]);
    }
  }
}

void VectorLinearForwardRange(float* y, const float* x, const void* w, const void* bias, int64_t m, int64_t n,
                              int64_t k, int64_t begin, int64_t end, DType dtype) {
  if (dtype == DType::kBF16)
    Forward(y, x, static_cast<const bf16*>(w), static_cast<const bf16*>(bias), m, n, k, begin, end);
  else
    Forward(y, x, static_cast<const float*>(w), static_cast<const float*>(bias), m, n, k, begin, end);
}

void VectorLinearWeightRange(float* dw, float* db, const float* dy, const float* x, int64_t m, int64_t n, int64_t k,
                             int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      const float g = dy[i * n + j];
      db[j] += g;
      ForEach(k, [&](auto d, int64_t c) HWY_ATTR {
        float* to = dw + j * k + c;
        hn::StoreU(hn::MulAdd(hn::Set(d, g), hn::LoadU(d, x + i * k + c), hn::LoadU(d, to)), d, to);
      });
    }
  }
}

// Columns [begin, end) of dx.
template <class T>
void InputGradient(float* dx, const float* dy, const T* w, int64_t m, int64_t n, int64_t k, int64_t begin,
                   int64_t end) {
  for (int64_t i = 0; i < m; ++i) std::fill(dx + i * k + begin, dx + i * k + end, 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      float* to = dx + i * k + begin;
      const T* from = w + j * k + begin;
      const float g = dy[i * n + j];
      ForEach(end - begin, [&](auto d, int64_t c) HWY_ATTR {
        hn::StoreU(hn::MulAdd(hn::Set(d, g), LoadFloat(d, from + c), hn::LoadU(d, to + c)), d, to + c);
      });
    }
  }
}

void VectorLinearInputRange(float* dx, const float* dy, const void* w, int64_t m, int64_t n, int64_t k, int64_t begin,
                            int64_t end, DType dtype) {
  if (dtype == DType::kBF16)
    InputGradient(dx, dy, static_cast<const bf16*>(w), m, n, k, begin, end);
  else
    InputGradient(dx, dy, static_cast<const float*>(w), m, n, k, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(VectorLinearForwardRange);
HWY_EXPORT(VectorLinearWeightRange);
HWY_EXPORT(VectorLinearInputRange);

namespace cpu {

namespace {
// Outputs of a piece: about 32K products.
int64_t outputs_grain(int64_t k) { return std::max<int64_t>(1, 32768 / k); }
constexpr int64_t kColumns = 256;
}  // namespace

void vector_linear_forward(Stream& stream, float* y, const float* x, const void* w, const void* bias, int64_t m,
                           int64_t n, int64_t k, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(VectorLinearForwardRange);
  stream.parallel_for(n, outputs_grain(k),
                      [&](int64_t begin, int64_t end) { run(y, x, w, bias, m, n, k, begin, end, dtype); });
}

void vector_linear_weight_gradient(Stream& stream, float* dw, float* db, const float* dy, const float* x, int64_t m,
                                   int64_t n, int64_t k) {
  const auto run = HWY_DYNAMIC_DISPATCH(VectorLinearWeightRange);
  stream.parallel_for(n, outputs_grain(k),
                      [&](int64_t begin, int64_t end) { run(dw, db, dy, x, m, n, k, begin, end); });
}

void vector_linear_input_gradient(Stream& stream, float* dx, const float* dy, const void* w, int64_t m, int64_t n,
                                  int64_t k, DType dtype) {
  const auto run = HWY_DYNAMIC_DISPATCH(VectorLinearInputRange);
  stream.parallel_for(k, kColumns, [&](int64_t begin, int64_t end) { run(dx, dy, w, m, n, k, begin, end, dtype); });
}

}  // namespace cpu
}  // namespace megaslide
#endif
