// A test double of the CUDA runtime: device memory is the host's, a stream is a thread with a queue, kernels run on it under
// the emulator of kernels/simt. It is as strict as the real one is documented to be: memory that a copy names must be the
// device's or the host's as its kind says, a stream or event that is gone is an error, an error of a kernel sticks to the
// device, and every call after it reports it.
//
// Programs linked with it read
//   MEGASLIDE_MOCK_CUDA_DEVICES=BYTES[,BYTES...]  memory of the devices (default: one of 8 GiB), of which one a process is used
//   MEGASLIDE_MOCK_CUDA_FAIL=CALL:NAME            fail at call number CALL of the process: out_of_memory (the call itself fails
//                                                 so), launch (the device breaks: the error sticks), refused (as out_of_memory,
//                                                 but of cudaHostRegister alone: CALL counts only these)
//   MEGASLIDE_MOCK_CUDA_SLOW=MICROSECONDS         copies of 1 MiB and more take so much longer
//   MEGASLIDE_MOCK_CUDA_REPORT=FILE               at the end, counts as JSON
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/mock_cuda/include/cuda_runtime_api.h"

namespace megaslide::mock_cuda {

struct RuntimeCounts {
  int64_t calls = 0;               // of the runtime that can fail
  int64_t allocations = 0;         // cudaMalloc, cudaHostAlloc, streams made
  int64_t events_made = 0;
  int64_t registrations = 0;
  int64_t copies = 0;
  int64_t pageable_copies = 0;     // asynchronous in name alone: from or to host memory that is not locked
  int64_t synchronous_copies = 0;  // cudaMemcpy
  int64_t synchronizations = 0;    // of a stream or the device
  int64_t kernels = 0;             // and matrix products
  int64_t live = 0;                // allocations, registrations, streams and events that are there now
};
RuntimeCounts runtime_counts();

struct RuntimeFaults {
  std::vector<int64_t> devices = {int64_t{8} << 30};
  int64_t fail_at = 0;  // 0: never; counted from set_runtime_faults()
  enum class Kind { kOutOfMemory, kLaunch, kRefused } kind = Kind::kOutOfMemory;
  int slow_copy_us = 0;          // of each copy of at least
  size_t slow_copy_bytes = 0;
};
// Also heals the device.
void set_runtime_faults(const RuntimeFaults& faults);

}  // namespace megaslide::mock_cuda
