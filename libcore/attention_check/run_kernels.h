// The kernels under test, on a stored case: tensors in, named results out.
#pragma once
#include <vector>

#include "attention_check/reference.h"
#include "kernels/stream.h"
#include "tensor/dtype.h"

namespace megaslide {

struct TestedKernel {
  const char* name;
  bool takes_bf16;  // has a variant that reads bf16
  NamedResults (*run)(const StoredCase&, DType, Stream&);
  bool takes_f32 = true;
};

// The CPU's that can run cases of this kind, without the reference; "dsa" runs whichever kernel limit_dsa_kernel() says.
const std::vector<TestedKernel>& tested_kernels(CaseKind kind);

}  // namespace megaslide
