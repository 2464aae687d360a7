// Stored cases through a set of kernels: K has an operator and its workspace for each, under the names of the CPU's.
#pragma once
#include <map>

#include "attention_check/run_kernels.h"
#include "kernels/gemm/gemm.h"
#include "tensor/tensor.h"

namespace megaslide::run_kernels {

inline HostTensor stored(const StoredCase& c, const char* name, DType dtype) {
  const std::vector<float>& v = c.at(name);
  HostTensor t(dtype, {static_cast<int64_t>(v.size())});
  convert_from_f32(t.data(), dtype, v.data(), t.elements());
  return t;
}
inline HostTensor floats(size_t n) { return HostTensor(DType::kF32, {static_cast<int64_t>(n)}); }
inline HostTensor bytes(int64_t n) { return HostTensor(DType::kU8, {n}); }
inline std::vector<double> values(const HostTensor& t) { return {t.f32(), t.f32() + t.elements()}; }

// Inputs and results that all attention operators have.
struct AttentionTensors {
  AttentionTensors(const StoredCase& c, DType dtype, int64_t lse_rows)
      : q(stored(c, "q", dtype)), k(stored(c, "k", dtype)), v(stored(c, "v", dtype)), dout(stored(c, "dout", DType::kF32)),
        out(floats(c.at("q").size())), lse(floats(static_cast<size_t>(lse_rows))), dq(floats(c.at("q").size())),
        dk(floats(c.at("k").size())), dv(floats(c.at("v").size())) {}
  NamedResults results() const {
    return {{"out", values(out)}, {"lse", values(lse)}, {"dq", values(dq)}, {"dk", values(dk)}, {"dv", values(dv)}};
  }
  HostTensor q, k, v, dout, out, lse, dq, dk, dv;
};

template <class K>
NamedResults run_dsa(const StoredCase& c, DType dtype, Stream& stream) {
  const DsaShape s = c.dsa_shape();
  AttentionTensors x(c, dtype, c.batch * c.tokens() * c.heads);
  HostTensor offsets = stored(c, "offsets", DType::kF32), doffsets = floats(c.at("offsets").size());
  HostTensor forward = bytes(K::dsa_forward_workspace_bytes(s, dtype)), backward = bytes(K::dsa_backward_workspace_bytes(s, dtype));
  K::dsa_forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), offsets.f32(), forward.data(), s, dtype);
  K::dsa_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), doffsets.f32(), x.q.data(), x.k.data(), x.v.data(),
               offsets.f32(), x.out.f32(), x.lse.f32(), x.dout.f32(), backward.data(), s, dtype);
  NamedResults r = x.results();
  r["doffsets"] = values(doffsets);
  return r;
}

template <class Shape>
NamedResults run_attention(const StoredCase& c, DType dtype, Stream& stream, const Shape& s, int64_t forward_bytes,
                           int64_t backward_bytes, const auto& forward, const auto& backward) {
  AttentionTensors x(c, dtype, c.batch * c.tokens() * c.heads);
  HostTensor a = bytes(forward_bytes), b = bytes(backward_bytes);
  forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), a.data(), s, dtype);
  backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), x.q.data(), x.k.data(), x.v.data(), x.out.f32(), x.lse.f32(),
           x.dout.f32(), b.data(), s, dtype);
  return x.results();
}

template <class K>
NamedResults run_dense(const StoredCase& c, DType dtype, Stream& stream) {
  const AttentionShape s = c.dense_shape();
  return run_attention(c, dtype, stream, s, K::dense_attention_forward_workspace_bytes(s, dtype),
                       K::dense_attention_backward_workspace_bytes(s, dtype), K::dense_attention_forward, K::dense_attention_backward);
}
template <class K>
NamedResults run_window(const StoredCase& c, DType dtype, Stream& stream) {
  const WindowShape s = c.window_shape();
  return run_attention(c, dtype, stream, s, K::window_attention_forward_workspace_bytes(s, dtype),
                       K::window_attention_backward_workspace_bytes(s, dtype), K::window_attention_forward,
                       K::window_attention_backward);
}

template <class K>
NamedResults run_pooled(const StoredCase& c, DType dtype, Stream& stream) {
  const PooledShape s = c.pooled_shape();
  const int64_t n = s.batch * s.tiles() * s.heads * s.head_dim;
  AttentionTensors x(c, dtype, s.batch * s.tiles() * s.heads);
  HostTensor gate = stored(c, "gate", DType::kF32), dgate = floats(c.at("gate").size());
  HostTensor saved = floats(static_cast<size_t>(pooled_saved_count(s))), workspace = bytes(K::pooled_workspace_bytes(s));
  K::pooled_forward(stream, x.out.f32(), saved.f32(), x.q.data(), x.k.data(), x.v.data(), gate.data(), workspace.data(), s, dtype);
  K::pooled_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), dgate.f32(), saved.f32(), gate.data(), x.dout.f32(),
                  workspace.data(), s);
  NamedResults r = x.results();
  const float* p = saved.f32();
  r["dgate"] = values(dgate);
  r["q_mean"] = {p, p + n}, r["k_mean"] = {p + n, p + 2 * n}, r["v_mean"] = {p + 2 * n, p + 3 * n};
  r["lse"] = {p + 4 * n, p + pooled_saved_count(s)};
  return r;
}

template <class K>
NamedResults run_offset_net(const StoredCase& c, DType dtype, Stream& stream) {
  OffsetNetShape s = c.offset_net_shape();
  s.x_dtype = s.weight_dtype = dtype;
  const int64_t rows = c.batch * c.tokens(), n = c.channels, m = c.outputs;
  HostTensor x = stored(c, "x", dtype), conv_w = stored(c, "conv_weight", dtype), conv_b = stored(c, "conv_bias", dtype);
  HostTensor norm_w = stored(c, "norm_weight", dtype), norm_b = stored(c, "norm_bias", dtype);
  HostTensor w = stored(c, "linear_weight", DType::kF32), b = stored(c, "linear_bias", DType::kF32);
  HostTensor doffsets = stored(c, "doffsets", DType::kF32);
  const auto per_row = [&](int64_t k) { return floats(static_cast<size_t>(rows * k)); };
  HostTensor conv = per_row(n), g = per_row(n), dg = per_row(n), dx = per_row(n), offsets = per_row(m);
  HostTensor forward_w = bytes(linear_packed_bytes(m, n, DType::kF32, PackFor::kForward));
  HostTensor backward_w = bytes(linear_packed_bytes(m, n, DType::kF32, PackFor::kInputGradient));
  linear_pack(stream, forward_w.data(), w.data(), m, n, DType::kF32, PackFor::kForward);
  linear_pack(stream, backward_w.data(), w.data(), m, n, DType::kF32, PackFor::kInputGradient);
  K::offset_net_forward(stream, g.data(), conv.f32(), x.data(), conv_w.data(), conv_b.data(), norm_w.data(), norm_b.data(), s);
  linear_forward(stream, offsets.f32(), g.data(), forward_w.data(), b.data(), rows, m, n, DType::kF32);
  HostTensor dw = floats(c.at("linear_weight").size()), db = floats(c.at("linear_bias").size());
  HostTensor dconv = floats(c.at("conv_weight").size()), dconv_b = floats(c.at("conv_bias").size());
  HostTensor dnorm = floats(c.at("norm_weight").size()), dnorm_b = floats(c.at("norm_bias").size());
  HostTensor workspace = bytes(K::offset_net_backward_workspace_bytes(s));
  linear_input_gradient(stream, dg.f32(), doffsets.data(), backward_w.data(), rows, m, n, DType::kF32, false);
  linear_weight_gradient(stream, dw.f32(), nullptr, doffsets.data(), g.data(), rows, m, n, DType::kF32);
  bias_gradient(stream, db.f32(), doffsets.f32(), rows, m);
  K::offset_net_backward(stream, dx.f32(), dconv.f32(), dconv_b.f32(), dnorm.f32(), dnorm_b.f32(), dg.f32(), conv.f32(),
                      x.data(), conv_w.data(), norm_w.data(), norm_b.data(), workspace.data(), s);
  return {{"conv_out", values(conv)}, {"gelu_out", values(g)}, {"offsets", values(offsets)}, {"dx", values(dx)},
          {"dconv_weight", values(dconv)}, {"dconv_bias", values(dconv_b)}, {"dnorm_weight", values(dnorm)},
          {"dnorm_bias", values(dnorm_b)}, {"dlinear_weight", values(dw)}, {"dlinear_bias", values(db)}};
}

template <class K>
NamedResults run_motion(const StoredCase& c, DType dtype, Stream& stream) {
  const DsaShape s = c.dsa_shape();
  const int64_t rows = c.batch * c.tokens(), n = c.channels, m = kMotionChannels, slots = rows * s.kernel[0];
  HostTensor x = stored(c, "x", dtype), w = stored(c, "motion_proj_weight", dtype), beta = stored(c, "s", dtype);
  HostTensor gain = stored(c, "gain", dtype), doffsets = stored(c, "doffsets", DType::kF32);
  HostTensor offsets = stored(c, "net_offsets", DType::kF32);
  const auto per = [](int64_t count) { return floats(static_cast<size_t>(count)); };
  HostTensor projected = per(rows * m), dprojected = per(rows * m), found = per(2 * slots), lse = per(slots), norm = per(rows);
  HostTensor dx = per(rows * n), dw = per(m * n), ds = per(1), dgain = per(s.groups), operand(dtype, {rows * m});
  HostTensor forward_w = bytes(linear_packed_bytes(m, n, dtype, PackFor::kForward));
  HostTensor backward_w = bytes(linear_packed_bytes(m, n, dtype, PackFor::kInputGradient));
  linear_pack(stream, forward_w.data(), w.data(), m, n, dtype, PackFor::kForward);
  linear_pack(stream, backward_w.data(), w.data(), m, n, dtype, PackFor::kInputGradient);
  HostTensor forward = bytes(K::motion_forward_workspace_bytes(s)), backward = bytes(K::motion_backward_workspace_bytes(s));
  HostTensor scratch = bytes(linear_weight_gradient_scratch(rows, m, n, dtype));
  linear_forward(stream, projected.f32(), x.data(), forward_w.data(), nullptr, rows, m, n, dtype);
  K::motion_forward(stream, offsets.f32(), found.f32(), lse.f32(), norm.f32(), projected.f32(), beta.data(), gain.data(),
                 forward.data(), s, dtype);
  K::motion_backward(stream, dprojected.f32(), ds.f32(), dgain.f32(), doffsets.f32(), found.f32(), lse.f32(), norm.f32(),
                  projected.f32(), beta.data(), gain.data(), backward.data(), s, dtype);
  convert_from_f32(operand.data(), dtype, dprojected.f32(), rows * m);
  linear_input_gradient(stream, dx.f32(), operand.data(), backward_w.data(), rows, m, n, dtype, false);
  linear_weight_gradient(stream, dw.f32(), scratch.data(), operand.data(), x.data(), rows, m, n, dtype);
  return {{"offsets", values(offsets)}, {"m", values(found)}, {"dx", values(dx)}, {"dmotion_proj_weight", values(dw)},
          {"ds", values(ds)}, {"dgain", values(dgain)}, {"dnet_offsets", values(doffsets)}};
}

}  // namespace megaslide::run_kernels
