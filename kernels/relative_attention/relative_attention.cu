#include "kernels/relative_attention/relative_attention.h"

#include "kernels/attention/rows.cuh"

namespace megaslide {
namespace {

// A block: eight queries of a head. The bias is read where it lies, 128 bytes a head apart and so in the cache.
template <int kColumns, class T>
__global__ void __launch_bounds__(kRowAttentionThreads) relative_attention_kernel(RowAttention<T> a, const float* bias) {
  attend_rows<kColumns>(a, [&](int query, int key) { return bias[relative_bucket(key - query) * gridDim.y + blockIdx.y]; });
}

}  // namespace

namespace cuda {

void relative_attention_forward(Stream& stream, void* out, const void* q, const void* k, const void* v, const float* bias, int64_t n,
                                int64_t heads, int64_t head_dim, DType dtype) {
  MS_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}", dtype_name(dtype));
  if (n == 0) return;
  if (heads > 65535) throw Error(fmt::format("{} heads: CUDA kernels take up to 65535", heads));
  by_type(dtype, [&]<class T>(T*) {
    const RowAttention<T> a{static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v), heads * head_dim, out,
                            dtype == DType::kBF16, heads * head_dim, static_cast<int>(count32(n, "tokens")), static_cast<int>(head_dim), 1.0f};
    by_row_columns(head_dim, [&](auto columns) {
      prim::launch(relative_attention_kernel<decltype(columns)::value, T>, row_attention_grid(n, heads), dim3(kRowAttentionThreads),
                   row_attention_shared(head_dim), stream, a, bias);
    });
  });
}

}  // namespace cuda
}  // namespace megaslide
