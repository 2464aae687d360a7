// The CUDA runtime as this room calls it: every failure is named.
#pragma once
#include <cuda_runtime_api.h>

#include <string_view>

namespace megaslide::cuda {

// Throws Error with the call, what it was about, and CUDA's name for the failure; of out of memory with a remedy.
void check(cudaError_t status, const char* call, std::string_view about = {});

// The device of this room for the calling thread.
void use_device(int index);

}  // namespace megaslide::cuda
