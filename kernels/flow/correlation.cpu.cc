// Correlations at flow positions, and the upsampling of a flow by its network's own weights.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/flow/correlation.cpu.cc"
#include "kernels/simd_targets.h"
// The order matters: the targets first.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/flow/flow.h"
#include "kernels/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kMaxRadius = 6, kWindow = 16;  // 2·6 + 2 = 14 offsets and a vector's slack

// Products of one cell with two neighbouring ones: two chains of sums each, so that an addition need not wait.
HWY_INLINE void DotPair(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t stored, float* first, float* second) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT c = b + stored;
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), t0 = hn::Zero(d), t1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= stored; i += 2 * lanes) {
    const auto u = hn::LoadU(d, a + i), v = hn::LoadU(d, a + i + lanes);
    s0 = hn::MulAdd(u, hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(v, hn::LoadU(d, b + i + lanes), s1);
    t0 = hn::MulAdd(u, hn::LoadU(d, c + i), t0);
    t1 = hn::MulAdd(v, hn::LoadU(d, c + i + lanes), t1);
  }
  if (i < stored) {
    const auto u = hn::LoadU(d, a + i);
    s0 = hn::MulAdd(u, hn::LoadU(d, b + i), s0);
    t0 = hn::MulAdd(u, hn::LoadU(d, c + i), t0);
  }
  *first = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
  *second = hn::GetLane(hn::SumOfLanes(d, hn::Add(t0, t1)));
}

// dots[x][y] of the window whose first cell is (y0, x0); cells outside the level give 0.
void WindowDots(float (*dots)[kWindow], const float* from, const float* level, const FrameLayout& l, int64_t y0, int64_t x0, int64_t n) {
  std::memset(dots, 0, static_cast<size_t>(n * kWindow) * sizeof(float));
  const int64_t stored = l.stored();
  const int64_t x_begin = std::max<int64_t>(x0, 0), x_end = std::min(x0 + n, l.width);
  for (int64_t y = std::max<int64_t>(y0, 0); y < std::min(y0 + n, l.height); ++y)
    for (int64_t x = x_begin; x < x_end; x += 2) {
      float pair[2];
      // The cell behind the last is memory of the frame: slack or the next row's.
      DotPair(from, level + l.cell(y, x), stored, &pair[0], &pair[1]);
      dots[x - x0][y - y0] = pair[0];
      if (x + 1 < x_end) dots[x + 1 - x0][y - y0] = pair[1];
    }
}

// out[i·k + j], k = 2r + 1; up to a vector more is written.
void Interpolate(float* out, const float (*dots)[kWindow], float fx, float fy, float scale, int64_t k) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto y1 = hn::Set(d, fy), y0 = hn::Set(d, 1 - fy), x1 = hn::Set(d, fx * scale), x0 = hn::Set(d, (1 - fx) * scale);
  for (int64_t i = 0; i < k; ++i)
    for (int64_t j = 0; j < k; j += lanes) {
      const auto left = hn::MulAdd(y1, hn::LoadU(d, dots[i] + j + 1), hn::Mul(y0, hn::LoadU(d, dots[i] + j)));
      const auto right = hn::MulAdd(y1, hn::LoadU(d, dots[i + 1] + j + 1), hn::Mul(y0, hn::LoadU(d, dots[i + 1] + j)));
      hn::StoreU(hn::MulAdd(x1, right, hn::Mul(x0, left)), d, out + i * k + j);
    }
}

// One level of one cell, centre (cy, cx) in the level's cells.
void LookupLevel(float* out, const CorrelationLookup& c, int level, const float* from, float cy, float cx) {
  const int64_t k = 2 * c.radius + 1;
  const FrameLayout& l = c.level_layouts[level];
  // A window that misses the level by far; the comparison also keeps conversions in range. NaN answers NaN.
  const float far = static_cast<float>(std::max(l.height, l.width) + 2 * kMaxRadius + 2);
  if (!(std::fabs(cy) < far && std::fabs(cx) < far)) {
    std::fill_n(out, k * k, std::isnan(cy) || std::isnan(cx) ? cy + cx : 0.0f);
    return;
  }
  const float floor_y = std::floor(cy), floor_x = std::floor(cx);
  float dots[kWindow + 1][kWindow];
  // Interpolate reads one element behind its vectors, in rows that it knows: up to dots[k][kWindow].
  WindowDots(dots, from, c.levels[level], l, static_cast<int64_t>(floor_y) - c.radius, static_cast<int64_t>(floor_x) - c.radius, k + 1);
  std::fill_n(dots[k + 1], kWindow, 0.0f);
  Interpolate(out, dots, cx - floor_x, cy - floor_y, c.scale, k);
}

void LookupRow(float* out, const FrameLayout& o, const CorrelationLookup& c, int64_t y) {
  const int64_t k = 2 * c.radius + 1;
  float values[kFlowLevels * (2 * kMaxRadius + 1) * (2 * kMaxRadius + 1) + 16];
  for (int64_t x = 0; x < o.width; ++x) {
    const float* flow = c.flow + (y * o.width + x) * c.flow_pitch + c.flow_first;
    const float cx = static_cast<float>(x) + c.flow_scale * flow[0], cy = static_cast<float>(y) + c.flow_scale * flow[1];
    float shrink = 1;
    for (int level = 0; level < kFlowLevels; ++level, shrink *= 0.5f)
      LookupLevel(values + level * k * k, c, level, c.from + c.from_layout.cell(y, x), cy * shrink, cx * shrink);
    std::memcpy(out + o.cell(y, x) + c.first, values, static_cast<size_t>(kFlowLevels * k * k) * sizeof(float));
  }
}

// Sub-pixels [64] of one cell: u, then v.
void UpsampleCell(float* out /*(2,64)*/, const float* logits, const float (*neighbours)[2]) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < 64; i += lanes) {
    auto top = hn::LoadU(d, logits + i);
    for (int k = 1; k < 9; ++k) top = hn::Max(top, hn::LoadU(d, logits + 64 * k + i));
    auto total = hn::Zero(d), u = hn::Zero(d), v = hn::Zero(d);
    for (int k = 0; k < 9; ++k) {
      const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, logits + 64 * k + i), top));
      total = hn::Add(total, e);
      u = hn::MulAdd(e, hn::Set(d, neighbours[k][0]), u);
      v = hn::MulAdd(e, hn::Set(d, neighbours[k][1]), v);
    }
    hn::StoreU(hn::Div(u, total), d, out + i);
    hn::StoreU(hn::Div(v, total), d, out + 64 + i);
  }
}

void UpsampleRow(float* out, const float* logits, const FrameLayout& l, const float* flow, int64_t y) {
  float cell[128];
  const int64_t width = 8 * l.width, plane = 8 * l.height * width;
  for (int64_t x = 0; x < l.width; ++x) {
    float neighbours[9][2] = {};
    for (int k = 0; k < 9; ++k) {
      const int64_t ny = y + k / 3 - 1, nx = x + k % 3 - 1;
      if (ny < 0 || nx < 0 || ny >= l.height || nx >= l.width) continue;
      for (int c = 0; c < 2; ++c) neighbours[k][c] = 8 * flow[(ny * l.width + nx) * 2 + c];
    }
    UpsampleCell(cell, logits + l.cell(y, x), neighbours);
    for (int64_t c = 0; c < 2; ++c)
      for (int64_t a = 0; a < 8; ++a) std::memcpy(out + c * plane + (8 * y + a) * width + 8 * x, cell + 64 * c + 8 * a, 8 * sizeof(float));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(LookupRow);
HWY_EXPORT(UpsampleRow);

namespace cpu {

void correlation_lookup(Stream& stream, float* out, FrameLayout o, CorrelationLookup c) {
  const int64_t k = 2 * c.radius + 1;
  MS_CHECK(c.radius >= 0 && c.radius <= 6 && c.first + kFlowLevels * k * k <= o.channels);
  for (const FrameLayout& l : c.level_layouts) MS_CHECK(l.stored() == c.from_layout.stored());
  stream.parallel_for(o.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) HWY_DYNAMIC_DISPATCH(LookupRow)(out, o, c, y);
  });
}

void convex_upsample(Stream& stream, float* out, const float* logits, FrameLayout l, const float* flow) {
  MS_CHECK(l.channels == 9 * 64);
  stream.parallel_for(l.height, 1, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) HWY_DYNAMIC_DISPATCH(UpsampleRow)(out, logits, l, flow, y);
  });
}

}  // namespace cpu
}  // namespace megaslide
#endif
