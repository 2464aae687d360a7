#include "kernels/attention/rows.cuh"
#include "kernels/frame/frame_ops.h"

namespace megaslide {
namespace {

template <int kColumns>
__global__ void __launch_bounds__(kRowAttentionThreads) frame_attention_kernel(RowAttention<float> a) {
  attend_rows<kColumns>(a, [](int, int) { return 0.0f; });
}

}  // namespace

namespace cuda {

void frame_attention(Stream& stream, void* out, FrameLayout layout, const float* qkv, FrameLayout qkv_layout) {
  MS_CHECK(layout.border == 0 && qkv_layout.border == 0 && qkv_layout.channels == 3 * layout.channels);
  const int64_t n = layout.height * layout.width, c = layout.channels;
  if (n == 0) return;
  const RowAttention<float> a{qkv, qkv + c, qkv + 2 * c, qkv_layout.stored(), out, layout.dtype == DType::kBF16, layout.stored(),
                              static_cast<int>(count32(n, "cells")), static_cast<int>(c), 1 / std::sqrt(static_cast<float>(c))};
  by_row_columns(c, [&](auto columns) {
    prim::launch(frame_attention_kernel<decltype(columns)::value>, row_attention_grid(n, 1), dim3(kRowAttentionThreads), row_attention_shared(c),
                 stream, a);
  });
}

}  // namespace cuda
}  // namespace megaslide
