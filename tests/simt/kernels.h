// Kernels that show what the emulator finds: correct ones, and ones with one fault each.
#pragma once
#include <cstdint>

#include "kernels/stream.h"
#include "tensor/dtype.h"

namespace megaslide::simt_test {

enum class MatmulFault {
  kNone,
  kWaitOneTooFew,      // reads a tile whose copy may still be on its way
  kNoBarrierAfterWait, // reads what other threads waited for
  kNoBarrierBeforeRefill,
  kDivergentBarrier,
};
// out = a·bᵀ; a (M,K), b (N,K), M and N multiples of 64, K of 32.
void matmul(Stream& stream, float* out, const bf16* a, const bf16* b, int m, int n, int k, MatmulFault fault);

// Each row of (rows, c) to mean 0 and variance 1; a block a row.
void layernorm(Stream& stream, float* out, const float* in, int rows, int c, int threads);

enum class RaceFault {
  kNone,
  kNoBlockBarrier,  // reads the neighbouring warp's value
  kNoWarpBarrier,   // reads the neighbouring lane's value
  kSameWord,        // all threads write one word
  kOverwrite,       // writes what another warp reads in the same stretch between barriers
};
// out[i] = i's neighbour, through shared memory. One block of 64 threads.
void neighbour(Stream& stream, int* out, RaceFault fault);

enum class CallFault { kNone, kExitBeforeCall, kDivergentCall, kPartialMask, kCopyNotWaitedFor, kMisaligned, kDeadlock };
// Misuse of warp-wide calls and copies. One block of 64 threads; in and out hold 64 values.
void calls(Stream& stream, float* out, const float* in, CallFault fault);

// Writes `index` of a shared array of 64 floats.
void write_shared(Stream& stream, int index);

}  // namespace megaslide::simt_test
