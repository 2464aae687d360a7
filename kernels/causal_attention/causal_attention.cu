#include "kernels/causal_attention/causal_attention.h"

#include <cmath>

#include "kernels/attention/rows.cuh"

namespace megaslide {
namespace {

// A block: eight queries of a head, and the keys up to the last of them.
template <int kColumns, class T>
__global__ void __launch_bounds__(kRowAttentionThreads) causal_attention_kernel(RowAttention<T> a) {
  const int seen = (static_cast<int>(blockIdx.x) + 1) * kRowQueries;
  if (a.n > seen) a.n = seen;
  attend_rows<kColumns>(a, [](int query, int key) { return key > query ? -INFINITY : 0.0f; });
}

}  // namespace

namespace cuda {

void causal_attention_forward(Stream& stream, void* out, const void* q, const void* k, const void* v, int64_t n, int64_t heads,
                              int64_t head_dim, float scale, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "{}", dtype_name(dtype));
  if (n == 0 || heads == 0) return;
  if (heads > 65535) throw Error(fmt::format("{} heads: CUDA kernels take up to 65535", heads));
  by_type(dtype, [&]<class T>(T*) {
    const RowAttention<T> a{static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v), heads * head_dim, out,
                            dtype == DType::kBF16, heads * head_dim, static_cast<int>(count32(n + kRowQueries, "tokens")) - kRowQueries,
                            static_cast<int>(head_dim), scale};
    by_row_columns(head_dim, [&](auto columns) {
      prim::launch(causal_attention_kernel<decltype(columns)::value, T>, row_attention_grid(n, heads), dim3(kRowAttentionThreads),
                   row_attention_shared(head_dim), stream, a);
    });
  });
}

}  // namespace cuda
}  // namespace megaslide
