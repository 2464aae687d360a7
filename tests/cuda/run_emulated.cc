#include "tests/cuda/run_emulated.h"

#include <algorithm>
#include <map>

#include "attention_check/reference.h"
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
  AttentionTensors(const StoredCase& c, DType dtype)
      : q(stored(c, "q", dtype)), k(stored(c, "k", dtype)), v(stored(c, "v", dtype)), dout(stored(c, "dout", DType::kF32)),
        out(floats(c.at("q").size())), lse(floats(static_cast<size_t>(c.batch * c.tokens() * c.heads))),
        dq(floats(c.at("q").size())), dk(floats(c.at("k").size())), dv(floats(c.at("v").size())) {}
  NamedResults results() const {
    return {{"out", values(out)}, {"lse", values(lse)}, {"dq", values(dq)}, {"dk", values(dk)}, {"dv", values(dv)}};
  }
  HostTensor q, k, v, dout, out, lse, dq, dk, dv;
};

NamedResults run_gather(const StoredCase& c, DType dtype, Stream& stream) {
  const DsaShape s = c.dsa_shape();
  AttentionTensors x(c, dtype);
  HostTensor offsets = stored(c, "offsets", DType::kF32), doffsets = floats(c.at("offsets").size());
  HostTensor workspace = bytes(cuda::dsa_backward_workspace_bytes(s, dtype));
  emulated::dsa_forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), offsets.f32(), nullptr, s, dtype);
  emulated::dsa_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), doffsets.f32(), x.q.data(), x.k.data(), x.v.data(),
                         offsets.f32(), x.out.f32(), x.lse.f32(), x.dout.f32(), workspace.data(), s, dtype);
  NamedResults r = x.results();
  r["doffsets"] = values(doffsets);
  return r;
}

template <class Shape>
NamedResults run_attention(const StoredCase& c, DType dtype, Stream& stream, const Shape& s, const auto& forward,
                           const auto& backward, int64_t backward_bytes) {
  AttentionTensors x(c, dtype);
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
  static const std::map<CaseKind, std::vector<TestedKernel>> kernels{
      {CaseKind::kDsa, {{"gather", true, &run_gather}}},
      {CaseKind::kDense, {{"dense", true, &run_dense}}},
      {CaseKind::kWindow, {{"window", true, &run_window}}}};
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
    for (const DType dtype : {DType::kF32, DType::kBF16}) checks.push_back(compare(c, kernel, dtype, plain, stream));
  return checks;
}

}  // namespace megaslide::testing_support
