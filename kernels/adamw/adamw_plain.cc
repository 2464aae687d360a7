#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/adamw/adamw_math.h"

namespace megaslide::plain {
namespace {
float element(const void* p, DType dtype, int64_t i) {
  return dtype == DType::kBF16 ? to_float(static_cast<const bf16*>(p)[i]) : static_cast<const float*>(p)[i];
}
}  // namespace

void adamw_update_split(bf16* w, int16_t* r, float* m, float* v, const void* gradient, DType gradient_dtype, int64_t n,
                        const AdamWStep& step) {
  const adamw::Coefficients c(step);
  for (int64_t i = 0; i < n; ++i) {
    const float p = adamw::update(c, join_master(w[i], r[i]), m[i], v[i], element(gradient, gradient_dtype, i));
    w[i] = master_weight(p);
    r[i] = master_remainder(p);
  }
}

void adamw_update_fp32(float* p, bf16* w, float* m, float* v, const void* gradient, DType gradient_dtype, int64_t n,
                       const AdamWStep& step) {
  const adamw::Coefficients c(step);
  for (int64_t i = 0; i < n; ++i) {
    p[i] = adamw::update(c, p[i], m[i], v[i], element(gradient, gradient_dtype, i));
    if (w) w[i] = master_weight(p[i]);
  }
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
