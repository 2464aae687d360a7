// Queries and keys between their projection and attention (spec wan.md A.7, A.8): RMS norm over all channels of a row
// (all heads together), gain, then 3D RoPE of every head.
//
//   r = (mean x² + eps)^−½,  u = g ⊙ x · r,
//   (y_2j, y_2j+1) = (u_2j cos θ_j − u_2j+1 sin θ_j,  u_2j sin θ_j + u_2j+1 cos θ_j)
//
// Pairs of a head: first those of the frame axis, then rows, then columns; an axis of a channels has
// θ_i = p · 10000^(−2i/a). Positions are integers of the token grid. Angles are fp64, their cosines and sines fp32.
#pragma once
#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/row_pieces.h"
#include "tensor/dtype.h"

namespace megaslide {

struct RopeGrid {
  int64_t frames = 1, height = 1, width = 1;  // T, H, W
  int64_t heads = 1, head_dim = 0;            // head_dim is even
  int64_t first_frame = 0;                    // position of frame 0, where the rows are a part of a clip
  // Channels of a head that an axis turns: h and w take 2⌊d/6⌋ each, t the rest.
  int64_t space_channels() const { return head_dim / 6 * 2; }
  int64_t time_channels() const { return head_dim - 2 * space_channels(); }
};

// Floats of the table: per axis and position, the cosines of its channels (each twice), then −sin and +sin by turns.
inline int64_t rope_table_elements(const RopeGrid& g) {
  return 2 * (g.frames * g.time_channels() + (g.height + g.width) * g.space_channels());
}
using RopeTable = void(Stream&, float* table /*(rope_table_elements)*/, RopeGrid grid);

// y and x hold dtype (bf16 or fp32); y may be x where there will be no backward, which reads x and rstd (r of every row;
// may be nullptr). Without a table (nullptr) nothing is turned. Rows are (B, T, H, W) tokens, C = heads · head_dim.
using RmsRopeForward = void(Stream&, void* y /*(R,C) dtype*/, float* rstd /*(R)*/, const void* x /*(R,C) dtype*/,
                            const float* gain /*(C)*/, const float* table, RopeGrid grid, int64_t rows, float eps,
                            DType dtype);

// dx is overwritten with the gradient at x, rounded to dtype. dgain += Σ and dbias += Σ_rows of the unrounded dx (the
// gradient of the projection's bias). scratch: rms_rope_scratch floats.
using RmsRopeBackward = void(Stream&, void* dx /*(R,C) dtype*/, float* dgain /*(C)*/, float* dbias /*(C)*/,
                             float* scratch, const float* dy /*(R,C)*/, const void* x /*(R,C) dtype*/,
                             const float* rstd /*(R)*/, const float* gain /*(C)*/, const float* table, RopeGrid grid,
                             int64_t rows, DType dtype);

inline int64_t rms_rope_scratch(int64_t rows, int64_t channels) { return row_sum_scratch(rows, rows, 2 * channels); }

namespace cpu {
RopeTable rope_table;
RmsRopeForward rms_rope_forward;
RmsRopeBackward rms_rope_backward;
}  // namespace cpu
namespace cuda {
MS_OPTIONAL RopeTable rope_table;
MS_OPTIONAL RmsRopeForward rms_rope_forward;
MS_OPTIONAL RmsRopeBackward rms_rope_backward;
}  // namespace cuda

// The plain twins: fp64 inside, angles computed in place, fp32 operands. rotate = false leaves out RoPE.
namespace reference {
void rms_rope_forward(float* y, const float* x, const float* gain, bool rotate, RopeGrid grid, int64_t rows, float eps);
void rms_rope_backward(float* dx, float* dgain, float* dbias, const float* dy, const float* x, const float* gain,
                       bool rotate, RopeGrid grid, int64_t rows, float eps);
}  // namespace reference

inline Cost rope_table_cost(float*, RopeGrid grid) {
  const double n = static_cast<double>(rope_table_elements(grid));
  return {KernelClass::kVector, 50 * n, 4 * n};  // a cosine, a sine and a power count about a hundred operations
}
inline Cost rms_rope_forward_cost(void*, float*, const void*, const float*, const float*, RopeGrid grid, int64_t rows,
                                  float, DType dtype) {
  const double n = static_cast<double>(rows * grid.heads * grid.head_dim);
  return {KernelClass::kVector, 7 * n, n * static_cast<double>(2 * dtype_bytes(dtype))};
}
inline Cost rms_rope_backward_cost(void*, float*, float*, float*, const float*, const void*, const float*, const float*,
                                   const float*, RopeGrid grid, int64_t rows, DType dtype) {
  const double n = static_cast<double>(rows * grid.heads * grid.head_dim);
  return {KernelClass::kVector, 13 * n, n * static_cast<double>(4 + 2 * dtype_bytes(dtype))};
}

inline constexpr Kernel<RopeTable> rope_table{"rope_table", &cpu::rope_table, &cuda::rope_table, &rope_table_cost};
inline constexpr Kernel<RmsRopeForward> rms_rope_forward{"rms_rope_forward", &cpu::rms_rope_forward,
                                                         &cuda::rms_rope_forward, &rms_rope_forward_cost};
inline constexpr Kernel<RmsRopeBackward> rms_rope_backward{"rms_rope_backward", &cpu::rms_rope_backward,
                                                           &cuda::rms_rope_backward, &rms_rope_backward_cost};

}  // namespace megaslide
