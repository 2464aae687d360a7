#include "kernels/dsa/dsa_block.h"

#include <algorithm>
#include <cmath>

namespace megaslide {
namespace {

bool axis_idle(const DsaShape& s, int axis) {
  return s.reach[axis] <= 0 || (axis == 0 && s.mode == DsaOffsetMode::kSlice);
}

// Whole tokens a sample may leave its base point by; never more than the axis is long.
int64_t whole_reach(const DsaShape& s, int axis, int64_t length) {
  if (axis_idle(s, axis)) return 0;
  return static_cast<int64_t>(std::ceil(std::min(s.reach[axis], static_cast<float>(length))));
}

}  // namespace

DsaBlocking::DsaBlocking(const DsaShape& s) {
  // The shape with the least halo work over a frame.
  double best = 0;
  for (int64_t h = 1; h <= std::min(kDsaBlock, s.height); ++h) {
    const int64_t w = std::min(kDsaBlock / h, s.width);
    const int64_t nh = (s.height + h - 1) / h, nw = (s.width + w - 1) / w;
    const auto halo = [&](int axis, int64_t length, int64_t block) {
      return std::min(length, std::min(s.kernel[axis], length) + block - 1 + 2 * whole_reach(s, axis, length));
    };
    const double work = static_cast<double>(nh * nw) * static_cast<double>(halo(1, s.height, h) * halo(2, s.width, w));
    if (h == 1 || work < best) best = work, block_h = h, block_w = w, count_h = nh, count_w = nw;
  }
  blocks = s.frames * count_h * count_w;
}

DsaBlock::DsaBlock(const DsaShape& s, const DsaBlocking& b, int64_t index) : height(s.height), width(s.width) {
  frame = index / (b.count_h * b.count_w);
  const int64_t h0 = index / b.count_w % b.count_h * b.block_h, w0 = index % b.count_w * b.block_w;
  const int64_t nh = std::min(b.block_h, s.height - h0), nw = std::min(b.block_w, s.width - w0);
  active = nh * nw;
  for (int64_t i = 0; i < kDsaBlock; ++i) {
    const int64_t q = std::min(i, active - 1);
    h[i] = h0 + q / nw;
    w[i] = w0 + q % nw;
    token[i] = (frame * s.height + h[i]) * s.width + w[i];
  }
  bounds = dsa_bounds(s, frame);
  const int64_t first[3] = {frame, h0, w0}, last[3] = {frame, h0 + nh - 1, w0 + nw - 1};
  slots = halo = 1;
  for (int a = 0; a < 3; ++a) {
    const int64_t lo = bounds.lo[a], hi = bounds.hi[a], k = bounds.k_eff[a], reach = whole_reach(s, a, hi - lo + 1);
    halo_lo[a] = std::max(lo, dsa_window_start(first[a], k, lo, hi) - reach);
    halo_n[a] = std::min(hi, dsa_window_start(last[a], k, lo, hi) + k - 1 + reach) + 1 - halo_lo[a];
    idle[a] = axis_idle(s, a) || hi == lo;
    slots *= k;
    halo *= halo_n[a];
  }
  step[0] = idle[0] ? 0 : halo_n[1] * halo_n[2];
  step[1] = idle[1] ? 0 : halo_n[2];
  step[2] = idle[2] ? 0 : 1;
}

void DsaPlaces::carve(Carver& c, const DsaShape& s, bool backward, DsaPlaces& p) {
  const int64_t n = s.slots() * kDsaBlock;
  p.cell = c.take<int32_t>(n);
  for (float*& f : p.f) f = c.take<float>(n);
  for (float*& slope : p.slope) slope = backward ? c.take<float>(n) : nullptr;
}

bool dsa_prefers_literal(const DsaBlock& b) {
  // The block reads each halo key once for all its queries, 16 lanes at a time; the literal path reads 16·8 corners a
  // slot in scalar code, at about a quarter of the rate. Beyond 2²² keys the scratch would be out of proportion.
  return b.halo > 4 * 16 * 8 * b.slots || b.halo > (int64_t{1} << 22);
}

}  // namespace megaslide
