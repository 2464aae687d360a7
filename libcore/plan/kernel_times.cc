#include "plan/kernel_times.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "plan/measured_device.h"

namespace megaslide {
using namespace measured;
namespace {

struct Measured {
  double seconds = 1e30, flops = 0;
};

// Of all calls of a pass together, from the begin of the first to the end of the last.
template <class Pass>
Measured shortest_pass(Device& device, int repeats, const Pass& pass) {
  Measured best;
  RecordingStream stream(device.compute());
  pass(stream);
  spans_of(device, StreamKind::kCompute);
  for (int i = 0; i < repeats; ++i) {
    stream.costs.clear();
    pass(stream);
    const auto spans = spans_of(device, StreamKind::kCompute);
    best.seconds = std::min(best.seconds, spans.back().end - spans.front().begin);
  }
  for (const Cost& c : stream.costs) best.flops += c.flops;
  return best;
}
PassTimes times_of(const Measured& forward, const Measured& backward) {
  return {forward.seconds, backward.seconds, forward.flops, backward.flops};
}

// Tensors of one attention call, forward and backward.
struct Operands {
  Operands(Device& device, const DsaShape& s, bool with_offsets) : space(device) {
    const int64_t n = s.tokens() * s.heads * s.head_dim;
    q = space.noise(DType::kBF16, n), k = space.noise(DType::kBF16, n), v = space.noise(DType::kBF16, n);
    dout = static_cast<float*>(space.noise(DType::kF32, n));
    out = space.zeros<float>(n), lse = space.zeros<float>(s.tokens() * s.heads);
    dq = space.zeros<float>(n), dk = space.zeros<float>(n), dv = space.zeros<float>(n);
    if (!with_offsets) return;
    const int64_t count = s.tokens() * dsa_offset_count(s);
    offsets = static_cast<float*>(space.noise(DType::kF32, count));
    doffsets = space.zeros<float>(count);
  }
  Space space;
  const void *q, *k, *v;
  float *out, *lse, *dout, *dq, *dk, *dv, *offsets = nullptr, *doffsets = nullptr;
};

// Dense or window attention: the same signatures.
template <class Shape>
PassTimes measure_operator(Device& device, const DsaShape& grid, const Shape& s, int repeats, const auto& forward, const auto& backward,
                           const auto& forward_bytes, const auto& backward_bytes) {
  constexpr DType kType = DType::kBF16;
  Operands x(device, grid, false);
  void* workspace =
      x.space.zeros<std::byte>(std::max(forward_bytes(device.compute(), s, kType), backward_bytes(device.compute(), s, kType)));
  const Measured f = shortest_pass(device, repeats, [&](Stream& stream) { forward(stream, x.out, x.lse, x.q, x.k, x.v, workspace, s, kType); });
  const Measured b = shortest_pass(device, repeats, [&](Stream& stream) {
    backward(stream, x.dq, x.dk, x.dv, x.q, x.k, x.v, x.out, x.lse, x.dout, workspace, s, kType);
  });
  return times_of(f, b);
}

}  // namespace

double measure_linear(Device& device, int64_t m, int64_t n, int64_t k, int repeats) {
  constexpr DType kType = DType::kBF16;
  Space space(device);
  const void *x = space.noise(kType, m * k), *w = space.noise(kType, n * k), *bias = space.noise(kType, n);
  void *y = space.zeros<bf16>(m * n), *packed = space.zeros<std::byte>(linear_packed_bytes(n, k, kType, PackFor::kForward));
  linear_pack(device.compute(), packed, w, n, k, kType, PackFor::kForward);
  return shortest_pass(device, repeats, [&](Stream& stream) { linear_operand(stream, y, x, packed, bias, m, n, k, kType); }).seconds;
}

PassTimes measure_attention(Device& device, AttentionKind kind, const DsaShape& s, int repeats) {
  constexpr DType kType = DType::kBF16;
  if (kind == AttentionKind::kDense) {
    const AttentionShape dense{s.batch, s.tokens(), s.tokens(), s.heads, s.head_dim, s.scale};
    return measure_operator(device, s, dense, repeats, dense_attention_forward, dense_attention_backward, dense_attention_forward_workspace,
                            dense_attention_backward_workspace);
  }
  if (kind == AttentionKind::kWindow) {
    const WindowShape window{s.batch, s.frames, s.height, s.width, s.heads, s.head_dim, s.scale, {s.kernel[0], s.kernel[1], s.kernel[2]}, 0};
    return measure_operator(device, s, window, repeats, window_attention_forward, window_attention_backward, window_attention_forward_workspace,
                            window_attention_backward_workspace);
  }
  Operands x(device, s, true);
  void* workspace = x.space.zeros<std::byte>(
      std::max(dsa_forward_workspace(device.compute(), s, kType), dsa_backward_workspace(device.compute(), s, kType)));
  const Measured f =
      shortest_pass(device, repeats, [&](Stream& stream) { dsa_forward(stream, x.out, x.lse, x.q, x.k, x.v, x.offsets, workspace, s, kType); });
  const Measured b = shortest_pass(device, repeats, [&](Stream& stream) {
    dsa_backward(stream, x.dq, x.dk, x.dv, x.doffsets, x.q, x.k, x.v, x.offsets, x.out, x.lse, x.dout, workspace, s, kType);
  });
  return times_of(f, b);
}

PassTimes measure_layer(Device& device, const ModelConfig& model, const BatchShape& shape, int repeats) {
  MeasuredBlock block(device, model, shape);
  const Measured f = shortest_pass(device, repeats, [&](Stream& stream) {
    block.pack(stream, false);
    block.forward(stream, false);
  });
  const Measured b = shortest_pass(device, repeats, [&](Stream& stream) {
    block.pack(stream, true);
    block.forward(stream, true);
    block.backward(stream);
  });
  return times_of(f, b);
}

}  // namespace megaslide
