// Workspaces of the CUDA entries, without CUDA.
#include <algorithm>

#include "kernels/dsa/dsa_cuda.h"
#include "kernels/dsa/motion_cuda.h"
#include "kernels/dsa/offset_net_cuda.h"
#include "kernels/dsa/pooled_cuda.h"

namespace megaslide::cuda {
namespace {

// Of P and dS; what a band of queries holds at a time.
int64_t band_bytes = int64_t{1} << 30;

int64_t frame_bytes(const DsaShape& s) {
  return s.batch * s.heads * s.height * s.width * s.slots() * int64_t{2 * sizeof(float)};
}

template <class Space, class Shape>
int64_t measured(const Shape& s) {
  Carver c;
  Space(c, s);
  return c.used();
}

}  // namespace

void limit_dsa_band(int64_t bytes) { band_bytes = bytes; }
int64_t dsa_band_frames(const DsaShape& s) {
  return std::clamp<int64_t>(band_bytes / std::max<int64_t>(frame_bytes(s), 1), 1, s.frames);
}

int64_t dsa_forward_workspace_bytes(const DsaShape&, DType) { return 0; }
int64_t dsa_backward_workspace_bytes(const DsaShape& s, DType) { return dsa_band_frames(s) * frame_bytes(s); }
int64_t pooled_workspace_bytes(const PooledShape& s) { return measured<PooledBackwardSpace>(s); }
int64_t motion_forward_workspace_bytes(const DsaShape&) { return 0; }
int64_t motion_backward_workspace_bytes(const DsaShape& s) { return measured<MotionBackwardSpace>(s); }
int64_t offset_net_backward_workspace_bytes(const OffsetNetShape& s) { return measured<OffsetNetBackwardSpace>(s); }

}  // namespace megaslide::cuda
