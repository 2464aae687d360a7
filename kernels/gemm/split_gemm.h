// The pieces of split_linear.h on AMX, one call a thread's.
#pragma once
#include <cstddef>
#include <cstdint>

namespace megaslide::gemm {

// The largest piece, in strips of 32 rows and pairs of 16 columns.
inline constexpr int64_t kSplitStrips = 13, kSplitPairs = 16;

struct SplitProblem {
  float* y;
  const void* x;  // parts
  const void* packed;
  const float* bias;  // may be null
  int64_t m, n, k;
  bool accumulate;
  // Where f is given, y_parts gets the parts of f(y) and y nothing.
  void (*f)(float* values, int64_t n);  // in place
  void* y_parts;
};

int64_t split_elements(int64_t rows, int64_t k);  // of 2 bytes: of x and of w
// Strips [s0, s1) of 32 rows of x (m, k).
void split_strips(uint16_t* parts, const float* x, int64_t m, int64_t k, int64_t s0, int64_t s1);
// Column pairs [p0, p1): 32 rows of w each.
void split_pack(uint16_t* packed, const float* w, int64_t n, int64_t k, int64_t p0, int64_t p1);

size_t split_scratch_bytes();
// Strips [s0, s1) by column pairs [p0, p1). scratch: split_scratch_bytes, 64-byte aligned.
void split_piece(const SplitProblem& problem, int64_t s0, int64_t s1, int64_t p0, int64_t p1, void* scratch);

}  // namespace megaslide::gemm
