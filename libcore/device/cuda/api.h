// The CUDA runtime as this room calls it: every failure is named, and what must not happen once a run is under way is
// counted.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <string_view>

namespace megaslide::cuda {

struct CallCounts {
  std::atomic<int64_t> allocations{0};       // of device memory and of locked host memory
  std::atomic<int64_t> registrations{0};     // host memory locked where it is
  std::atomic<int64_t> copies{0};            // asynchronous, from and to locked memory
  std::atomic<int64_t> staged_copies{0};     // of them through the ring, since the host's memory is not locked
  std::atomic<int64_t> synchronizations{0};  // of a whole stream or device
};
CallCounts& call_counts();

// Throws Error with the call, what it was about, and CUDA's name for the failure; of out of memory with a remedy.
void check(cudaError_t status, const char* call, std::string_view about = {});

// The device of this room for the calling thread.
void use_device(int index);

}  // namespace megaslide::cuda
