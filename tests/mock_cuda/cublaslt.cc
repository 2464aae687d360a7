#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <vector>

#include "kernels/gemm/onednn.h"
#include "tensor/dtype.h"
#include "tests/mock_cuda/mock_cublaslt.h"
#include "tests/mock_cuda/mock_stream.h"

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  const void *scale_a = nullptr, *scale_b = nullptr;
  int32_t bias_type = -1;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace megaslide::mock_cuda {
namespace {

std::mutex mutex;
std::set<const void*> objects;
CublasLtCounts counts;
int calls_to_failure = 0;
cublasStatus_t failure = CUBLAS_STATUS_SUCCESS;

// The lock of a call, and the failure that was asked for, if it is this one's.
struct Call {
  Call() {
    ++counts.calls;
    if (calls_to_failure > 0 && --calls_to_failure == 0) injected = failure;
  }
  std::lock_guard<std::mutex> lock{mutex};
  cublasStatus_t injected = CUBLAS_STATUS_SUCCESS;
  explicit operator bool() const { return injected == CUBLAS_STATUS_SUCCESS; }
};

template <class T, class... A>
cublasStatus_t create(T** object, A... a) {
  const Call call;
  if (!call) return call.injected;
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = new T{a...};
  objects.insert(*object);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t destroy(T* object) {
  const std::lock_guard lock(mutex);
  if (objects.erase(object) == 0) return CUBLAS_STATUS_INVALID_VALUE;
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}
bool lives(const void* object) { return objects.count(object) > 0; }

template <class T>
cublasStatus_t set(T& to, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

int64_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 ? 1 : 2; }
DType dtype_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? DType::kF32 : type == CUDA_R_8F_E4M3 ? DType::kF8_E4M3 : DType::kBF16;
}

using Layout = cublasLtMatrixLayoutOpaque_t;
bool well_formed(const Layout& x) { return x.rows > 0 && x.columns > 0 && x.ld >= static_cast<int64_t>(x.rows); }
size_t bytes_of(const Layout& x) {
  return (static_cast<size_t>(x.ld) * (x.columns - 1) + x.rows) * static_cast<size_t>(element_bytes(x.type));
}
bool same(const Layout& x, const Layout& y) {
  return x.type == y.type && x.rows == y.rows && x.columns == y.columns && x.ld == y.ld;
}

struct Problem {
  const cublasLtMatmulDescOpaque_t& desc;
  const Layout &a, &b, &c, &d;
  bool transposed_a() const { return desc.transpose_a == CUBLAS_OP_T; }
  bool transposed_b() const { return desc.transpose_b == CUBLAS_OP_T; }
  uint64_t m() const { return transposed_a() ? a.columns : a.rows; }
  uint64_t k() const { return transposed_a() ? a.rows : a.columns; }
  uint64_t n() const { return transposed_b() ? b.rows : b.columns; }

  bool fp8() const { return a.type == CUDA_R_8F_E4M3; }
  // The documentation's requirements: A transposed, B not; dimensions in memory a multiple of 16 bytes.
  bool fp8_supported() const {
    const auto whole = [](const Layout& x) { return x.rows * static_cast<uint64_t>(element_bytes(x.type)) % 16 == 0 && x.ld * element_bytes(x.type) % 16 == 0; };
    return b.type == CUDA_R_8F_E4M3 && (d.type == CUDA_R_32F || d.type == CUDA_R_16BF) && transposed_a() && !transposed_b() && whole(a) && whole(b) && whole(d);
  }
  cudaDataType_t bias_type() const { return fp8() ? CUDA_R_16BF : d.type; }

  cublasStatus_t check() const {
    for (const Layout* x : {&a, &b, &c, &d})
      if (!well_formed(*x)) return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t inner = transposed_b() ? b.columns : b.rows;
    if (inner != k() || d.rows != m() || d.columns != n() || !same(c, d)) return CUBLAS_STATUS_INVALID_VALUE;
    if (desc.compute != CUBLAS_COMPUTE_32F || desc.scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!fp8() && (desc.scale_a != nullptr || desc.scale_b != nullptr)) return CUBLAS_STATUS_INVALID_VALUE;
    if (fp8() && !fp8_supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (desc.bias_type != -1 && desc.bias_type != bias_type()) return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool types = fp8() || (a.type == b.type && (a.type == CUDA_R_32F ? d.type == CUDA_R_32F
                                                                 : a.type == CUDA_R_16BF && (d.type == CUDA_R_32F || d.type == CUDA_R_16BF)));
    if (!types) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && desc.epilogue != CUBLASLT_EPILOGUE_BIAS)
      return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
  }
};

// What an algorithm was found for; lies in cublasLtMatmulAlgo_t. Dimensions are compared by a hash.
struct Algorithm {
  uint64_t problem, workspace;
  uint32_t alignment[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

uint64_t hash(const Problem& p) {
  uint64_t h = 14695981039346656037ULL;
  const auto mix = [&](uint64_t x) { h = (h ^ x) * 1099511628211ULL; };
  for (const Layout* x : {&p.a, &p.b, &p.c, &p.d}) mix(x->rows), mix(x->columns), mix(static_cast<uint64_t>(x->ld)), mix(x->type);
  mix(p.desc.transpose_a), mix(p.desc.transpose_b), mix(p.desc.epilogue);
  return h;
}

bool aligned(const void* p, uint64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

struct Range {
  const std::byte* begin;
  size_t bytes;
  Range(const void* p, size_t n) : begin(static_cast<const std::byte*>(p)), bytes(n) {}
  bool meets(const Range& o) const { return begin < o.begin + o.bytes && o.begin < begin + bytes; }
};

// All of a product, for the stream's thread.
struct Product {
  Layout a, b, d;
  bool transposed_a, transposed_b;
  int64_t m, n, k;
  float alpha, beta;
  const void *a_data, *b_data, *c_data, *bias;
  cudaDataType_t bias_type;
  const void *scale_a, *scale_b;  // read when the product runs
  void *d_data, *workspace;
  size_t workspace_bytes;

  static float scale(const void* p) { return p == nullptr ? 1 : *static_cast<const float*>(p); }
  static std::vector<float> dense(const Layout& x, const void* data) {
    std::vector<float> r(x.rows * x.columns);
    for (uint64_t j = 0; j < x.columns; ++j)
      convert_to_f32(r.data() + j * x.rows, static_cast<const std::byte*>(data) + static_cast<int64_t>(j) * x.ld * element_bytes(x.type),
                     dtype_of(x.type), static_cast<int64_t>(x.rows));
    return r;
  }
  void run() const {
    // An algorithm may leave anything there.
    if (workspace_bytes > 0) std::memset(workspace, 0xff, workspace_bytes);
    const std::vector<float> left = dense(a, a_data), right = dense(b, b_data);
    std::vector<float> sum(static_cast<size_t>(m * n)), column(static_cast<size_t>(m));
    // A column-major product is the row-major one of the operands exchanged.
    onednn::sgemm(transposed_b, transposed_a, n, m, k, right.data(), static_cast<int64_t>(b.rows), left.data(),
                  static_cast<int64_t>(a.rows), 0, sum.data(), m);
    const DType out = dtype_of(d.type);
    const float scaled = alpha * scale(scale_a) * scale(scale_b);
    std::vector<float> added(static_cast<size_t>(m));
    if (bias) convert_to_f32(added.data(), bias, dtype_of(bias_type), m);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = j * d.ld * element_bytes(d.type);
      if (beta != 0) convert_to_f32(column.data(), static_cast<const std::byte*>(c_data) + at, out, m);
      for (int64_t i = 0; i < m; ++i) {
        const auto u = static_cast<size_t>(i);
        float x = scaled * sum[static_cast<size_t>(j * m) + u];
        if (beta != 0) x += beta * column[u];
        column[u] = bias ? x + added[u] : x;
      }
      convert_from_f32(static_cast<std::byte*>(d_data) + at, out, column.data(), m);
    }
  }
};

}  // namespace

void fail_cublaslt(int call, cublasStatus_t status) {
  const std::lock_guard lock(mutex);
  calls_to_failure = call, failure = status;
}

CublasLtCounts cublaslt_counts() {
  const std::lock_guard lock(mutex);
  CublasLtCounts r = counts;
  r.objects = static_cast<int64_t>(objects.size());
  return r;
}

}  // namespace megaslide::mock_cuda

using namespace megaslide::mock_cuda;

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  return create(desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  const Call call;
  if (!call) return call.injected;
  if (!lives(desc)) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(desc->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return set(desc->scale_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return set(desc->scale_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(desc->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
  return create(layout, type, rows, cols, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  const Call call;
  if (!call) return call.injected;
  if (!lives(preference)) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(preference->reductions, value, bytes);
    default: return set(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  }
}

// A long sum of few results is cut in two where that may take a workspace and reduce outside the result.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  const Call call;
  if (!call) return call.injected;
  for (const void* x : {static_cast<const void*>(handle), static_cast<const void*>(desc), static_cast<const void*>(a),
                        static_cast<const void*>(b), static_cast<const void*>(c), static_cast<const void*>(d),
                        static_cast<const void*>(preference)})
    if (!lives(x)) return CUBLAS_STATUS_INVALID_VALUE;
  if (requested < 1 || results == nullptr || returned == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  ++counts.heuristics;
  *returned = 0;
  const Problem p{*desc, *a, *b, *c, *d};
  if (const cublasStatus_t status = p.check(); status != CUBLAS_STATUS_SUCCESS) return status;
  const Layout* layouts[4] = {a, b, c, d};
  Algorithm algorithm{hash(p), 0, {}};
  for (int i = 0; i < 4; ++i) {
    if (preference->alignment[i] < (p.fp8() ? 16 : element_bytes(layouts[i]->type))) return CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm.alignment[i] = std::min(preference->alignment[i], 16U);
  }
  const uint64_t partial = p.m() * p.n() * sizeof(float);
  const bool split = (preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 && p.k() >= 2 * std::max(p.m(), p.n());
  if (split && partial <= preference->workspace) algorithm.workspace = partial;
  results[0] = {};
  std::memcpy(results[0].algo.data, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  Product product;
  {
    const Call call;
    if (!call) return call.injected;
    for (const void* x : {static_cast<const void*>(handle), static_cast<const void*>(desc), static_cast<const void*>(a_layout),
                          static_cast<const void*>(b_layout), static_cast<const void*>(c_layout), static_cast<const void*>(d_layout)})
      if (!lives(x)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!alpha || !beta || !a || !b || !c || !d || !algo) return CUBLAS_STATUS_INVALID_VALUE;
    const Problem p{*desc, *a_layout, *b_layout, *c_layout, *d_layout};
    if (const cublasStatus_t status = p.check(); status != CUBLAS_STATUS_SUCCESS) return status;
    Algorithm algorithm;
    std::memcpy(&algorithm, algo->data, sizeof algorithm);
    if (algorithm.problem != hash(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const void* data[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i)
      if (!aligned(data[i], algorithm.alignment[i])) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algorithm.workspace > workspace_bytes || (algorithm.workspace > 0 && (!workspace || !aligned(workspace, 16))))
      return CUBLAS_STATUS_INVALID_VALUE;
    const bool has_bias = desc->epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (has_bias && (!desc->bias || !aligned(desc->bias, static_cast<uint64_t>(element_bytes(p.bias_type())))))
      return CUBLAS_STATUS_INVALID_VALUE;
    const Range result(d, bytes_of(*d_layout)), space(workspace, algorithm.workspace);
    const Range inputs[] = {{a, bytes_of(*a_layout)}, {b, bytes_of(*b_layout)},
                            {has_bias ? desc->bias : a, has_bias ? p.m() * static_cast<uint64_t>(element_bytes(p.bias_type())) : 1},
                            {p.fp8() ? desc->scale_a : a, p.fp8() ? sizeof(float) : 1}, {p.fp8() ? desc->scale_b : a, p.fp8() ? sizeof(float) : 1}};
    for (const Range& x : inputs)
      if (x.meets(result) || x.meets(space)) return CUBLAS_STATUS_INVALID_VALUE;
    if (result.meets(space) || (c != d && Range(c, bytes_of(*c_layout)).meets(result))) return CUBLAS_STATUS_INVALID_VALUE;
    ++counts.products;
    if (algorithm.workspace > 0) ++counts.with_workspace;
    product = {*a_layout, *b_layout, *d_layout, p.transposed_a(), p.transposed_b(), static_cast<int64_t>(p.m()),
               static_cast<int64_t>(p.n()), static_cast<int64_t>(p.k()), *static_cast<const float*>(alpha),
               *static_cast<const float*>(beta), a, b, c, has_bias ? desc->bias : nullptr, p.bias_type(), desc->scale_a, desc->scale_b, d, workspace, algorithm.workspace};
  }
  run_on(stream, [product] { product.run(); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
