#include "device/cuda/api.h"

#include "base/error.h"
#include "base/library_versions.h"

namespace megaslide::cuda {

void check(cudaError_t status, const char* call, std::string_view about) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would report it again, as its own
  const char* remedy = "";
  if (status == cudaErrorMemoryAllocation)
    remedy = "nvidia-smi lists what else holds the device's memory; stream.device_budget takes less of it";
  else if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice)
    remedy = "install the NVIDIA driver that this CUDA version asks for (nvidia-smi prints both), or take --device cpu";
  throw Error(fmt::format("{}{}{}: {} ({})", call, about.empty() ? "" : " of ", about, cudaGetErrorString(status), cudaGetErrorName(status)), remedy);
}

void use_device(int index) {
  thread_local int current = -1;
  if (current == index) return;
  check(cudaSetDevice(index), "cudaSetDevice");
  current = index;
}

}  // namespace megaslide::cuda

namespace megaslide {

std::string version_of_cudart() { return fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10); }

}  // namespace megaslide
