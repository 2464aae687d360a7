#include "tests/cuda/run_emulated.h"

#include <algorithm>
#include <map>

#include "attention_check/reference.h"
#include "kernels/gemm/gemm.h"
#include "kernels/simt/emulated_kernels.h"
#include "tensor/tensor.h"

namespace megaslide::testing_support {
namespace {

HostTensor stored(const StoredCase& c, const char* name, DType dtype) {
  const std::vector<float>& v = c.at(name);
  HostTensor t(dtype, {static_cast<int64_t>(v.size())});
  convert_from_f32(t.data(), dtype, v.data(), t.elements());
  return t;
}
HostTensor floats(size_t n) { return HostTensor(DType::kF32, {static_cast<int64_t>(n)}); }
HostTensor bytes(int64_t n) { return HostTensor(DType::kU8, {n}); }
std::vector<double> values(const HostTensor& t) { return {t.f32(), t.f32() + t.elements()}; }

struct AttentionTensors {
  AttentionTensors(const StoredCase& c, DType dtype, int64_t lse_rows)
      : q(stored(c, "q", dtype)), k(stored(c, "k", dtype)), v(stored(c, "v", dtype)), dout(stored(c, "dout", DType::kF32)),
        out(floats(c.at("q").size())), lse(floats(static_cast<size_t>(lse_rows))),
        dq(floats(c.at("q").size())), dk(floats(c.at("k").size())), dv(floats(c.at("v").size())) {}
  NamedResults results() const {
    return {{"out", values(out)}, {"lse", values(lse)}, {"dq", values(dq)}, {"dk", values(dk)}, {"dv", values(dv)}};
  }
  HostTensor q, k, v, dout, out, lse, dq, dk, dv;
};

NamedResults run_gather(const StoredCase& c, DType dtype, Stream& stream) {
  const DsaShape s = c.dsa_shape();
  AttentionTensors x(c, dtype, c.batch * c.tokens() * c.heads);
  HostTensor offsets = stored(c, "offsets", DType::kF32), doffsets = floats(c.at("offsets").size());
  HostTensor workspace = bytes(cuda::dsa_backward_workspace_bytes(s, dtype));
  emulated::dsa_forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), offsets.f32(), nullptr, s, dtype);
  emulated::dsa_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), doffsets.f32(), x.q.data(), x.k.data(), x.v.data(),
                         offsets.f32(), x.out.f32(), x.lse.f32(), x.dout.f32(), workspace.data(), s, dtype);
  NamedResults r = x.results();
  r["doffsets"] = values(doffsets);
  return r;
}

// Forward by tiles where they fit, backward by gathering.
NamedResults run_tile(const StoredCase& c, DType dtype, Stream& stream) {
  cuda::allow_dsa_tiles(true);
  NamedResults r = run_gather(c, dtype, stream);
  cuda::allow_dsa_tiles(false);
  return r;
}

template <class Shape>
NamedResults run_attention(const StoredCase& c, DType dtype, Stream& stream, const Shape& s, const auto& forward,
                           const auto& backward, int64_t backward_bytes) {
  AttentionTensors x(c, dtype, c.batch * c.tokens() * c.heads);
  HostTensor workspace = bytes(backward_bytes);
  forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), nullptr, s, dtype);
  backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), x.q.data(), x.k.data(), x.v.data(), x.out.f32(), x.lse.f32(),
           x.dout.f32(), workspace.data(), s, dtype);
  return x.results();
}
NamedResults run_dense(const StoredCase& c, DType dtype, Stream& stream) {
  const AttentionShape s = c.dense_shape();
  return run_attention(c, dtype, stream, s, emulated::dense_attention_forward, emulated::dense_attention_backward,
                       cuda::dense_attention_backward_workspace_bytes(s, dtype));
}
NamedResults run_window(const StoredCase& c, DType dtype, Stream& stream) {
  const WindowShape s = c.window_shape();
  return run_attention(c, dtype, stream, s, emulated::window_attention_forward, emulated::window_attention_backward,
                       cuda::window_attention_backward_workspace_bytes(s, dtype));
}

NamedResults run_pooled(const StoredCase& c, DType dtype, Stream& stream) {
  const PooledShape s = c.pooled_shape();
  const int64_t n = s.batch * s.tiles() * s.heads * s.head_dim;
  AttentionTensors x(c, dtype, s.batch * s.tiles() * s.heads);
  HostTensor gate = stored(c, "gate", DType::kF32), dgate = floats(c.at("gate").size());
  HostTensor saved = floats(static_cast<size_t>(pooled_saved_count(s))), workspace = bytes(cuda::pooled_workspace_bytes(s));
  emulated::pooled_forward(stream, x.out.f32(), saved.f32(), x.q.data(), x.k.data(), x.v.data(), gate.data(), nullptr, s, dtype);
  emulated::pooled_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), dgate.f32(), saved.f32(), gate.data(), x.dout.f32(),
                            workspace.data(), s);
  NamedResults r = x.results();
  const float* p = saved.f32();
  r["dgate"] = values(dgate);
  r["q_mean"] = {p, p + n}, r["k_mean"] = {p + n, p + 2 * n}, r["v_mean"] = {p + 2 * n, p + 3 * n};
  r["lse"] = {p + 4 * n, p + pooled_saved_count(s)};
  return r;
}

// The last linear layer is no part of the kernels: its two products here are the CPU's.
NamedResults run_offset_net(const StoredCase& c, DType dtype, Stream& stream) {
  OffsetNetShape s = c.offset_net_shape();
  s.x_dtype = s.weight_dtype = dtype;
  const int64_t rows = c.batch * c.tokens(), n = c.channels, m = c.outputs;
  HostTensor x = stored(c, "x", dtype), conv_w = stored(c, "conv_weight", dtype), conv_b = stored(c, "conv_bias", dtype);
  HostTensor norm_w = stored(c, "norm_weight", dtype), norm_b = stored(c, "norm_bias", dtype);
  HostTensor w = stored(c, "linear_weight", DType::kF32), doffsets = stored(c, "doffsets", DType::kF32);
  const auto per_row = [&](int64_t k) { return floats(static_cast<size_t>(rows * k)); };
  HostTensor conv = per_row(n), g = per_row(n), dg = per_row(n), dx = per_row(n);
  HostTensor packed = bytes(linear_packed_bytes(m, n, DType::kF32, PackFor::kInputGradient));
  linear_pack(stream, packed.data(), w.data(), m, n, DType::kF32, PackFor::kInputGradient);
  linear_input_gradient(stream, dg.f32(), doffsets.data(), packed.data(), rows, m, n, DType::kF32, false);
  HostTensor dconv = floats(c.at("conv_weight").size()), dconv_b = floats(c.at("conv_bias").size());
  HostTensor dnorm = floats(c.at("norm_weight").size()), dnorm_b = floats(c.at("norm_bias").size());
  HostTensor workspace = bytes(cuda::offset_net_backward_workspace_bytes(s));
  emulated::offset_net_forward(stream, g.data(), conv.f32(), x.data(), conv_w.data(), conv_b.data(), norm_w.data(), norm_b.data(), s);
  emulated::offset_net_backward(stream, dx.f32(), dconv.f32(), dconv_b.f32(), dnorm.f32(), dnorm_b.f32(), dg.f32(), conv.f32(),
                                x.data(), conv_w.data(), norm_w.data(), norm_b.data(), workspace.data(), s);
  return {{"conv_out", values(conv)}, {"gelu_out", values(g)}, {"dx", values(dx)}, {"dconv_weight", values(dconv)},
          {"dconv_bias", values(dconv_b)}, {"dnorm_weight", values(dnorm)}, {"dnorm_bias", values(dnorm_b)}};
}

// See attention_check/check.cc for the reasons of these numbers.
constexpr double kFloor = 8 * 0x1p-24;

KernelCheck compare(const StoredCase& c, const TestedKernel& kernel, DType dtype, const NamedResults (&plain)[3], Stream& stream) {
  KernelCheck check{c.name, std::string("cuda_") + kernel.name + (dtype == DType::kBF16 ? "_bf16" : ""), {}, {}, true};
  for (const auto& [name, result] : kernel.run(c, dtype, stream)) {
    const std::vector<double>& exact = plain[0].at(name);
    double tolerance = 2 * relative_error(plain[2].at(name), exact) + kFloor;
    if (dtype == DType::kF32) tolerance = std::min(tolerance, 4 * relative_error(plain[1].at(name), exact) + kFloor);
    check.tolerance[name] = tolerance;
    check.error[name] = relative_error(result, c.at(name));
    check.ok = check.ok && check.error[name] <= tolerance;
  }
  return check;
}

}  // namespace

const std::vector<TestedKernel>& emulated_kernels(CaseKind kind) {
  cuda::allow_dsa_tiles(false);  // but in run_tile
  static const std::map<CaseKind, std::vector<TestedKernel>> kernels{
      {CaseKind::kDsa, {{"gather", true, &run_gather}, {"tile", true, &run_tile}}},
      {CaseKind::kDense, {{"dense", true, &run_dense}}},
      {CaseKind::kWindow, {{"window", true, &run_window}}},
      {CaseKind::kPooled, {{"pooled", true, &run_pooled}}},
      {CaseKind::kOffsetNet, {{"offset_net", true, &run_offset_net}}}};
  static const std::vector<TestedKernel> none;
  const auto at = kernels.find(kind);
  return at == kernels.end() ? none : at->second;
}

std::vector<KernelCheck> check_emulated(const StoredCase& c, Stream& stream) {
  const auto& kernels = emulated_kernels(c.kind);
  if (kernels.empty()) return {};
  const NamedResults plain[3] = {reference_results(c, Arithmetic::kF64), reference_results(c, Arithmetic::kF32),
                                 reference_results(c, Arithmetic::kBf16)};
  std::vector<KernelCheck> checks;
  for (const TestedKernel& kernel : kernels)
    for (const DType dtype : {DType::kF32, DType::kBF16})
      if (dtype == DType::kBF16 || kernel.run != &run_tile) checks.push_back(compare(c, kernel, dtype, plain, stream));
  return checks;
}

}  // namespace megaslide::testing_support
