// cuBLASLt, opened at its first use: it weighs half a gigabyte, and programs that contain the CUDA kernels also run where it
// is not installed. The functions below are the library's own, by name; each passes its call on.
#include <cublasLt.h>
#include <dlfcn.h>

#include "base/error.h"

namespace {

void* library() {
  static void* const opened = [] {
    const std::string major = std::to_string(CUBLAS_VER_MAJOR);
    std::string reasons;
    for (const std::string& name : {"libcublasLt.so." + major, std::string(MEGASLIDE_CUBLASLT_PATH)}) {
      if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
      reasons += fmt::format("\n  {}", dlerror());
    }
    throw megaslide::Error(fmt::format("cuBLASLt {} cannot be loaded:{}", major, reasons),
                           "install CUDA's libraries of this version, or name their folder in LD_LIBRARY_PATH");
  }();
  return opened;
}

void* function(const char* name) {
  void* f = dlsym(library(), name);
  if (!f) throw megaslide::Error(fmt::format("cuBLASLt has no {}", name), "install the CUDA version that this program was built with");
  return f;
}

}  // namespace

// Of a function NAME with the parameters and arguments given: the same function, found once.
#define MS_PASS_ON(NAME, PARAMETERS, ...)                                                \
  cublasStatus_t CUBLASWINAPI NAME PARAMETERS {                                          \
    static const auto passed_on = reinterpret_cast<decltype(&NAME)>(function(#NAME));    \
    return passed_on(__VA_ARGS__);                                                       \
  }

extern "C" {
MS_PASS_ON(cublasLtCreate, (cublasLtHandle_t* handle), handle)
MS_PASS_ON(cublasLtDestroy, (cublasLtHandle_t handle), handle)
MS_PASS_ON(cublasLtMatmul,
           (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
            cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
            const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream),
           handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, workspace_bytes, stream)
MS_PASS_ON(cublasLtMatmulAlgoGetHeuristic,
           (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
            cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t results[], int* found),
           handle, desc, a, b, c, d, preference, requested, results, found)
MS_PASS_ON(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale), desc, compute, scale)
MS_PASS_ON(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), desc)
MS_PASS_ON(cublasLtMatmulDescSetAttribute, (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes), desc,
           attribute, value, bytes)
MS_PASS_ON(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t* preference), preference)
MS_PASS_ON(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), preference)
MS_PASS_ON(cublasLtMatmulPreferenceSetAttribute,
           (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes), preference, attribute,
           value, bytes)
MS_PASS_ON(cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld), layout, type, rows,
           columns, ld)
MS_PASS_ON(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), layout)

const char* CUBLASWINAPI cublasLtGetStatusName(cublasStatus_t status) {
  static const auto passed_on = reinterpret_cast<decltype(&cublasLtGetStatusName)>(function("cublasLtGetStatusName"));
  return passed_on(status);
}
}
