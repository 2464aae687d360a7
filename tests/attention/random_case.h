// Stored cases made up on the spot: random inputs that are exact in bf16, results from the fp64 reference. Checking one
// holds every kernel of its kind to the tolerance rule of spec dsa.md §7.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attention_check/check.h"
#include "attention_check/reference.h"
#include "base/philox.h"

namespace megaslide::testing_support {

inline std::vector<float> bf16_normals(int64_t n, uint64_t series, double deviation = 1, uint64_t seed = 11) {
  const Random random(seed, RandomPurpose::kTest);
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = to_float(to_bf16(static_cast<float>(deviation * random.normal(series, i))));
  return v;
}

// q, k, v, dout, and what the kind needs besides. `spread` scales q.
inline void fill_inputs(StoredCase& c, double spread = 1, uint64_t seed = 11) {
  c.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  const int64_t n = c.batch * c.tokens() * c.heads * c.head_dim;
  uint64_t series = 0;
  for (const char* name : {"q", "k", "v", "dout"})
    c.tensors[name] = bf16_normals(n, ++series, *name == 'q' ? spread : 1, seed);
  if (c.kind == CaseKind::kDsa)
    c.tensors["offsets"] = bf16_normals(c.batch * c.tokens() * dsa_offset_count(c.dsa_shape()), 5, 1.5, seed);
  if (c.kind == CaseKind::kPooled) c.tensors["gate"] = bf16_normals(c.heads, 6, 1, seed);
}

inline void fill_results(StoredCase& c) {
  for (const auto& [name, values] : reference_results(c, Arithmetic::kF64)) c.tensors[name].assign(values.begin(), values.end());
}

// Every kernel against fp64. Reports kernel, tensor, error and tolerance where one is off.
inline void expect_kernels_agree(StoredCase c, const std::string& what, int threads = 2) {
  fill_results(c);
  InlineStream stream(threads);
  for (const KernelCheck& check : check_case(c, stream))
    EXPECT_TRUE(check.ok) << what << ": " << to_json_line(check);
}

}  // namespace megaslide::testing_support
