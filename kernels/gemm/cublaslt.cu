#include "kernels/gemm/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "kernels/gemm/gemm_cuda.h"

namespace megaslide::cublaslt {
namespace {

// What NVIDIA recommends for its largest devices.
constexpr size_t kLibraryShare = size_t{32} << 20;

std::string describe(const Shape& s) {
  return fmt::format("({},{})·({},{}){}{}, {} to {}{}{}", s.m, s.k, s.k, s.n, s.transpose_a ? ", left transposed" : "",
                     s.transpose_b ? ", right transposed" : "", dtype_name(s.in), dtype_name(s.out), s.bias ? ", bias" : "",
                     s.accumulate ? ", accumulated" : "");
}
void check(cublasStatus_t status, const char* call, const Shape& s) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(fmt::format("{} of {}: {}", call, describe(s), cublasLtGetStatusName(status)));
}

// Owns a handle, descriptor or the like.
template <class T, cublasStatus_t (*kDestroy)(T)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& o) noexcept : object_(std::exchange(o.object_, nullptr)) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(object_, o.object_);
    return *this;
  }
  ~Owned() { reset(); }
  void reset() {
    if (object_) kDestroy(std::exchange(object_, nullptr));
  }
  T* slot() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};
using Handle = Owned<cublasLtHandle_t, &cublasLtDestroy>;
using Descriptor = Owned<cublasLtMatmulDesc_t, &cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &cublasLtMatmulPreferenceDestroy>;

cudaDataType type_of(DType t) {
  if (t == DType::kF8_E4M3) return CUDA_R_8F_E4M3;
  return t == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

Layout make_layout(DType type, int64_t rows, int64_t columns, const Shape& s) {
  Layout r;
  check(cublasLtMatrixLayoutCreate(r.slot(), type_of(type), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
        "cublasLtMatrixLayoutCreate", s);
  return r;
}

// A product's descriptors and algorithm.
struct Plan {
  Descriptor desc;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value, const Shape& s) {
    check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute", s);
  }
  void set_scales(const Scales& scales, const Shape& s) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(scales.a), s);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(scales.b), s);
  }
};

// The largest power of two up to 16 that an address is a multiple of: what the widest load needs. More would make the
// algorithm, and with it the bits, depend on where a schedule happens to place its operands.
uint32_t alignment(const void* p) {
  uint32_t r = 16;
  while (reinterpret_cast<uintptr_t>(p) % r != 0) r /= 2;
  return r;
}
enum Aligned { kA, kB, kD, kBias };
using Alignments = std::array<uint32_t, 4>;

Plan make_plan(cublasLtHandle_t handle, const Shape& s, const Alignments& at, const void* bias, const Scales& scales,
               size_t workspace_bytes) {
  Plan p;
  check(cublasLtMatmulDescCreate(p.desc.slot(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate", s);
  p.set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, s);
  p.set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, s);
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(s.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT), s);
  // The heuristic looks at its alignment.
  if (s.bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, s);
  if (s.in == DType::kF8_E4M3) {
    p.set_scales(scales, s);
    if (s.bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(CUDA_R_16BF), s);
  }
  p.a = s.transpose_a ? make_layout(s.in, s.k, s.m, s) : make_layout(s.in, s.m, s.k, s);
  p.b = s.transpose_b ? make_layout(s.in, s.n, s.k, s) : make_layout(s.in, s.k, s.n, s);
  p.d = make_layout(s.out, s.m, s.n, s);

  Preference preference;
  check(cublasLtMatmulPreferenceCreate(preference.slot()), "cublasLtMatmulPreferenceCreate", s);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute", s);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, at[kA]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, at[kB]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, at[kD]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, at[kD]);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, p.desc.get(), p.a.get(), p.b.get(), p.d.get(), p.d.get(),
                                                               preference.get(), 1, &found, &count);
  check(status == CUBLAS_STATUS_SUCCESS && count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : status, "cublasLtMatmulAlgoGetHeuristic", s);
  check(found.state, "cublasLtMatmulAlgoGetHeuristic", s);
  p.algorithm = found.algo, p.workspace = found.workspaceSize;
  return p;
}

// Products set the bias and scales in a plan that others use too: one thread at a time, which only queues work.
struct Library {
  std::mutex mutex;
  Handle handle;
  std::map<std::pair<Shape, Alignments>, Plan> plans;
  std::byte* workspace = nullptr;
  size_t bytes = 0;

  size_t share() const { return std::min(kLibraryShare, bytes / 2 / 256 * 256); }
};
// Not destroyed: at the process's end the driver may be gone already.
Library& library = *new Library;

}  // namespace

Space own_space() {
  Library& l = library;
  const std::lock_guard lock(l.mutex);
  return {l.workspace + l.share(), static_cast<int64_t>(l.bytes - l.share())};
}

void multiply(Stream& stream, const Shape& s, void* d, const void* a, const void* b, const void* bias, const Scales& scales) {
  Library& l = library;
  const std::lock_guard lock(l.mutex);
  if (l.handle.get() == nullptr) check(cublasLtCreate(l.handle.slot()), "cublasLtCreate", s);
  const Alignments at{alignment(a), alignment(b), alignment(d), s.bias ? alignment(bias) : 0};
  const std::pair key{s, at};
  auto found = l.plans.find(key);
  if (found == l.plans.end()) found = l.plans.emplace(key, make_plan(l.handle.get(), s, at, bias, scales, l.share())).first;
  Plan& p = found->second;
  if (s.bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, s);
  if (s.in == DType::kF8_E4M3) p.set_scales(scales, s);
  const float alpha = 1, beta = s.accumulate ? 1 : 0;
  check(cublasLtMatmul(l.handle.get(), p.desc.get(), &alpha, a, p.a.get(), b, p.b.get(), &beta, d, p.d.get(), d, p.d.get(),
                       &p.algorithm, l.workspace, p.workspace, static_cast<cudaStream_t>(stream.native())),
        "cublasLtMatmul", s);
}

}  // namespace megaslide::cublaslt

namespace megaslide::cuda {

void set_gemm_workspace(void* device_memory, size_t bytes) {
  MS_CHECK(reinterpret_cast<uintptr_t>(device_memory) % 256 == 0, "{}", device_memory);
  cublaslt::Library& l = cublaslt::library;
  const std::lock_guard lock(l.mutex);
  l.plans.clear();  // chosen for another size
  l.workspace = static_cast<std::byte*>(device_memory);
  l.bytes = bytes;
}

void release_gemm() {
  set_gemm_workspace(nullptr, 0);
  cublaslt::Library& l = cublaslt::library;
  const std::lock_guard lock(l.mutex);
  l.handle.reset();
}

}  // namespace megaslide::cuda
