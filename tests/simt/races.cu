#include "kernels/device.h"
#include "tests/simt/kernels.h"

namespace megaslide::simt_test {
namespace {

template <RaceFault kFault>
__global__ void neighbour_kernel(int* out) {
  int* s = prim::dynamic_shared<int>();
  const int i = static_cast<int>(threadIdx.x), lane = i % 32;
  const bool across_warps = kFault != RaceFault::kNoWarpBarrier;
  const int other = across_warps ? (i + 32) % 64 : i - lane + (lane + 1) % 32;
  s[i] = i;
  if constexpr (kFault == RaceFault::kSameWord) s[64] = 7;
  if constexpr (kFault != RaceFault::kNoBlockBarrier && kFault != RaceFault::kNoWarpBarrier) __syncthreads();
  out[i] = s[other];
  if constexpr (kFault == RaceFault::kOverwrite) s[i] = 0;
}

template <CallFault kFault>
__global__ void calls_kernel(float* out, const float* in) {
  float* s = prim::dynamic_shared<float>();
  const int i = static_cast<int>(threadIdx.x), lane = i % 32;
  float x = in[i];
  if constexpr (kFault == CallFault::kExitBeforeCall) {
    if (lane == 3) return;
  }
  if constexpr (kFault == CallFault::kDivergentCall) {
    if (lane < 16) {
      x = __shfl_xor_sync(prim::kFullMask, x, 1);
    } else {
      x = __shfl_xor_sync(prim::kFullMask, x, 2);
    }
  } else if constexpr (kFault == CallFault::kPartialMask) {
    x = __shfl_xor_sync(0xffffu, x, 1);
  } else {
    x = __shfl_xor_sync(prim::kFullMask, x, 1);
  }
  if constexpr (kFault == CallFault::kDeadlock) {
    if (lane == 0) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }
  const int copied = kFault == CallFault::kMisaligned ? 1 : 0;
  if (i % 4 == 0) prim::cp_async_16(s + i + copied, in + i);
  prim::cp_async_commit();
  if constexpr (kFault != CallFault::kCopyNotWaitedFor) prim::cp_async_wait<0>();
  __syncthreads();
  if constexpr (kFault != CallFault::kCopyNotWaitedFor) out[i] = x + s[i];
}

template <RaceFault kFault>
void launch_neighbour(Stream& stream, int* out) {
  prim::launch(neighbour_kernel<kFault>, dim3(1), dim3(64), 65 * sizeof(int), stream, out);
}
template <CallFault kFault>
void launch_calls(Stream& stream, float* out, const float* in) {
  prim::launch(calls_kernel<kFault>, dim3(1), dim3(64), 68 * sizeof(float), stream, out, in);
}

}  // namespace

void neighbour(Stream& stream, int* out, RaceFault fault) {
  switch (fault) {
    case RaceFault::kNone: return launch_neighbour<RaceFault::kNone>(stream, out);
    case RaceFault::kNoBlockBarrier: return launch_neighbour<RaceFault::kNoBlockBarrier>(stream, out);
    case RaceFault::kNoWarpBarrier: return launch_neighbour<RaceFault::kNoWarpBarrier>(stream, out);
    case RaceFault::kSameWord: return launch_neighbour<RaceFault::kSameWord>(stream, out);
    case RaceFault::kOverwrite: return launch_neighbour<RaceFault::kOverwrite>(stream, out);
  }
}

void calls(Stream& stream, float* out, const float* in, CallFault fault) {
  switch (fault) {
    case CallFault::kNone: return launch_calls<CallFault::kNone>(stream, out, in);
    case CallFault::kExitBeforeCall: return launch_calls<CallFault::kExitBeforeCall>(stream, out, in);
    case CallFault::kDivergentCall: return launch_calls<CallFault::kDivergentCall>(stream, out, in);
    case CallFault::kPartialMask: return launch_calls<CallFault::kPartialMask>(stream, out, in);
    case CallFault::kCopyNotWaitedFor: return launch_calls<CallFault::kCopyNotWaitedFor>(stream, out, in);
    case CallFault::kMisaligned: return launch_calls<CallFault::kMisaligned>(stream, out, in);
    case CallFault::kDeadlock: return launch_calls<CallFault::kDeadlock>(stream, out, in);
  }
}

}  // namespace megaslide::simt_test
