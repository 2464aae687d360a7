// All that this project asks of oneDNN, 2.6 and 3.x: matrix products on the calling thread alone.
//
// oneDNN is an OpenMP build on the distributions we support. Each entry sets the calling thread's team to one thread,
// so that our pool's threads work side by side and a result never depends on how many there are. Products are compiled
// once a shape and kept for the life of the process; any thread may run one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace megaslide::onednn {

// True where the processor multiplies bf16 in hardware (AVX512-BF16, AMX). Elsewhere oneDNN has no bf16 product or a
// slow one, and callers widen to fp32.
bool native_bf16();

// The best instruction set that oneDNN uses here, by its own name: "avx512_core_amx".
std::string instruction_set();

// C (m,n) fp32 = A (m,k) · B (k,n), plus bias (n), plus C. Operands are kF32, or kBF16 where native_bf16().
// Strides are in elements; one of each pair is 1. B packed: as Packing lays it out (b_row = b_column = 0).
struct MatmulShape {
  int64_t m, n, k;
  int64_t a_row, a_column;
  int64_t b_row, b_column;
  int64_t c_row;
  DType dtype;
  bool bias = false;
  bool accumulate = false;
  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
};

class Matmul {
 public:
  struct Impl;
  explicit Matmul(const Impl* impl) : impl_(impl) {}
  // Throws Error when oneDNN fails (out of memory).
  void run(float* c, const void* a, const void* b, const void* bias = nullptr) const;

 private:
  const Impl* impl_;
};

// The compiled product of a shape: from the process-wide table, created on first use (about 0.5 ms).
Matmul find_matmul(const MatmulShape& shape);

// B (k,n) re-laid as the products of this processor read it fastest, one layout for every m. B lies in memory with the
// strides (b_row, b_column).
class Packing {
 public:
  struct Impl;
  explicit Packing(const Impl* impl) : impl_(impl) {}
  int64_t bytes() const;
  int64_t pieces() const;  // independent column ranges, fixed by the shape
  void run_piece(void* packed, const void* b, int64_t piece) const;

 private:
  const Impl* impl_;
};
Packing find_packing(int64_t k, int64_t n, int64_t b_row, int64_t b_column, DType dtype);

// C (m,n) fp32 = op(A)·op(B) + beta·C, row-major with leading dimensions; op transposes where asked.
void sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
           const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// At least `bytes` of 64-byte aligned memory of the calling thread, valid until its next call with the same slot.
enum class ScratchSlot { kOneDnn, kA, kB, kResult, kTile, kCount };
void* thread_scratch(ScratchSlot slot, size_t bytes);

}  // namespace megaslide::onednn
