#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/sequences.cuh"

namespace megaslide {
namespace {

// d = rowsum(dO ⊙ O): a warp a row.
__global__ void __launch_bounds__(32 * kWarpsPerBlock)
    row_dot_kernel(float* d, const float* out, const float* dout, unsigned rows, int channels) {
  const unsigned row = warp_unit();
  if (row >= rows) return;
  const int64_t at = int64_t{row} * channels;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x % 32); c < channels; c += 32) sum = fmaf(dout[at + c], out[at + c], sum);
  sum = prim::warp_sum(sum);
  if (threadIdx.x % 32 == 0) d[row] = sum;
}

bool on_tensor_cores(const Sequences& s, DType dtype) { return dtype == DType::kBF16 && s.head_dim <= kMmaHeadDim; }

template <class Shape>
void forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v, const Shape& shape,
             DType dtype) {
  const SequenceForward x{out, lse, q, k, v, Sequences(shape)};
  if (x.sequences.units() == 0) return;
  on_tensor_cores(x.sequences, dtype) ? attention_mma_forward(stream, x) : attention_plain_forward(stream, x, dtype);
}

template <class Shape>
void backward(Stream& stream, float* dq, float* dk, float* dv, const void* q, const void* k, const void* v,
              const float* out, const float* lse, const float* dout, void* workspace, const Shape& shape, DType dtype) {
  float* d = static_cast<float*>(workspace);
  const SequenceBackward x{dq, dk, dv, q, k, v, lse, dout, d, Sequences(shape)};
  const int64_t rows = x.sequences.units();
  if (rows > 0)
    prim::launch(row_dot_kernel, warp_grid(rows), warp_block(), 0, stream, d, out, dout, static_cast<unsigned>(rows),
                 x.sequences.head_dim);
  if (x.sequences.count() == 0) return;
  on_tensor_cores(x.sequences, dtype) ? attention_mma_backward(stream, x) : attention_plain_backward(stream, x, dtype);
}

}  // namespace

namespace cuda {

void dense_attention_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v, void*,
                             AttentionShape s, DType dtype) {
  forward(stream, out, lse, q, k, v, s, dtype);
}
void window_attention_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v, void*,
                              WindowShape s, DType dtype) {
  forward(stream, out, lse, q, k, v, s, dtype);
}
void dense_attention_backward(Stream& stream, float* dq, float* dk, float* dv, const void* q, const void* k,
                              const void* v, const float* out, const float* lse, const float* dout, void* workspace,
                              AttentionShape s, DType dtype) {
  backward(stream, dq, dk, dv, q, k, v, out, lse, dout, workspace, s, dtype);
}
void window_attention_backward(Stream& stream, float* dq, float* dk, float* dv, const void* q, const void* k,
                               const void* v, const float* out, const float* lse, const float* dout, void* workspace,
                               WindowShape s, DType dtype) {
  backward(stream, dq, dk, dv, q, k, v, out, lse, dout, workspace, s, dtype);
}

}  // namespace cuda
}  // namespace megaslide
