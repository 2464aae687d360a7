// Materialised attention under the emulator against the CPU's in fp32.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/attention/attention.h"
#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

struct alignas(64) Line {
  Line() { std::fill(std::begin(number), std::end(number), NAN); }
  float number[16];
};

TEST(CudaMaterialised, ForwardAndBackward) {
  // A pair; more queries and more keys than a tile has; one key; channels beyond a tile.
  const AttentionShape shapes[] = {{1, 1, 2, 1, 3, 0.7f}, {2, 66, 5, 1, 12, 0.3f}, {1, 5, 70, 2, 66, 0.12f}, {2, 3, 1, 2, 8, 0.3f}};
  for (const AttentionShape& s : shapes)
    for (const DType dtype : kBothTypes) {
      SCOPED_TRACE(fmt::format("{} queries, {} keys, d {}, {}", s.queries, s.keys, s.head_dim, dtype_name(dtype)));
      const int64_t queries = s.batch * s.queries * s.heads * s.head_dim, keys = s.batch * s.keys * s.heads * s.head_dim, rows = s.batch * s.queries * s.heads;
      const std::vector<float> q = as_stored(dtype, normals(queries, 1)), k = as_stored(dtype, normals(keys, 2)), v = as_stored(dtype, normals(keys, 3)),
                               dout = normals(queries, 4);
      const auto run = [&](Stream& stream, DType t, const auto& forward, const auto& backward, int64_t space) {
        Array q_in(t, q), k_in(t, k), v_in(t, v), g(DType::kF32, dout), out = Array::empty(DType::kF32, queries), lse = Array::empty(DType::kF32, rows),
              dq = Array::empty(DType::kF32, queries), dk = Array::empty(DType::kF32, keys), dv = Array::empty(DType::kF32, keys);
        std::vector<Line> memory(static_cast<size_t>(space) / sizeof(Line) + 1);
        void* workspace = memory.data();
        forward(stream, out.floats(), lse.floats(), q_in.data(), k_in.data(), v_in.data(), workspace, s, t);
        backward(stream, dq.floats(), dk.floats(), dv.floats(), q_in.data(), k_in.data(), v_in.data(), out.floats(), lse.floats(), g.floats(),
                 workspace, s, t);
        return Results{out.values(), lse.values(), dq.values(), dk.values(), dv.values()};
      };
      InlineStream cpu;
      const Results want = run(cpu, DType::kF32, cpu::dense_materialised_forward, cpu::dense_materialised_backward,
                               dense_materialised_backward_workspace_bytes(s, DType::kF32));
      const Results got = in_every_schedule([&](Stream& stream) {
        return run(stream, dtype, cuda::dense_materialised_forward, cuda::dense_materialised_backward,
                   cuda::dense_materialised_backward_workspace_bytes(s, dtype));
      });
      const char* names[] = {"out", "lse", "dq", "dk", "dv"};
      for (size_t i = 0; i < got.size(); ++i) {
        // Of one key there is no gradient at queries and keys.
        if (s.keys == 1 && (i == 2 || i == 3)) {
          EXPECT_EQ(got[i], want[i]) << names[i];
        } else {
          // fp32 sums of up to 70 terms, and differences dP − rowsum(dO ⊙ O) of two of them.
          expect_close(got[i], want[i], 2 * kFp32, names[i]);
        }
      }
    }
}

}  // namespace
}  // namespace megaslide
