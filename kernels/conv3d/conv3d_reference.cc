#include <cmath>
#include <vector>

#include "kernels/conv3d/conv3d.h"

namespace megaslide::reference {
namespace {
double value(const void* frame, DType dtype, int64_t i) {
  return static_cast<double>(dtype == DType::kBF16 ? to_float(static_cast<const bf16*>(frame)[i])
                                                   : static_cast<const float*>(frame)[i]);
}
void set(void* frame, DType dtype, int64_t i, double v) {
  if (dtype == DType::kBF16)
    static_cast<bf16*>(frame)[i] = to_bf16(static_cast<float>(v));
  else
    static_cast<float*>(frame)[i] = static_cast<float>(v);
}

double sum(const FrameConv& c, const float* w, int64_t o, int64_t y, int64_t x) {
  double u = 0;
  for (int64_t t = 0; t < c.shape.kt; ++t) {
    if (!c.frames[t]) continue;
    for (int64_t i = 0; i < c.shape.kh; ++i)
      for (int64_t j = 0; j < c.shape.kw; ++j) {
        const int64_t at = c.in.cell(c.stride * y + c.dy + i, c.stride * x + c.dx + j);
        for (int64_t k = 0; k < c.shape.in; ++k)
          u += value(c.frames[t], c.in.dtype, at + k) *
               static_cast<double>(w[(((o * c.shape.in + k) * c.shape.kt + t) * c.shape.kh + i) * c.shape.kw + j]);
      }
  }
  return u;
}
}  // namespace

void frame_conv(const FrameConv& c, const float* w) {
  const FrameFinish& f = c.finish;
  std::vector<double> u(static_cast<size_t>(c.shape.out));
  for (int64_t y = 0; y < c.rows; ++y)
    for (int64_t x = 0; x < c.columns; ++x) {
      const int64_t at = f.out.cell(f.step * y + f.y, f.step * x + f.x);
      double squares = 0;
      for (int64_t o = 0; o < c.shape.out; ++o) {
        double v = sum(c, w, o, y, x) + (f.bias ? static_cast<double>(f.bias[o]) : 0.0);
        if (f.residual) v += value(f.residual, f.out.dtype, at + o);
        if (f.residual2) v += value(f.residual2, f.out.dtype, at + o);
        if (f.slope && v < 0) v *= static_cast<double>(f.slope[o]);
        u[static_cast<size_t>(o)] = v;
        squares += v * v;
        if (f.raw) set(f.raw, f.out.dtype, at + o, v);
      }
      if (!f.normed) continue;
      const double norm = std::sqrt(squares);
      for (int64_t o = 0; o < c.shape.out; ++o) {
        const double v = u[static_cast<size_t>(o)] * std::sqrt(static_cast<double>(c.shape.out)) /
                         (norm < 1e-12 ? 1e-12 : norm) * static_cast<double>(f.gamma[o]);
        set(f.normed, f.out.dtype, at + o, f.silu ? v / (1 + std::exp(-v)) : v);
      }
    }
}

}  // namespace megaslide::reference
