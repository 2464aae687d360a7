// What tests see and ask of the mock cuBLASLt.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tests/mock_cuda/include/cublasLt.h"

namespace megaslide::mock_cuda {

// Call number `call` from now on (1: the next one) of any cuBLASLt function that can fail returns `status` and does
// nothing. 0: none does.
void fail_cublaslt(int call, cublasStatus_t status);

struct CublasLtCounts {
  int64_t objects = 0;     // handles, descriptors, layouts and preferences that live
  int64_t calls = 0;       // of functions that can fail
  int64_t heuristics = 0;  // searches for an algorithm
  int64_t products = 0;
  int64_t with_workspace = 0;  // products whose algorithm takes some
};
CublasLtCounts cublaslt_counts();

}  // namespace megaslide::mock_cuda
