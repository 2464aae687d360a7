// The tests of the CUDA kernels on a GPU. Exit status 77 where there is none.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "libcore/device/cuda/api.h"
#include "tests/cuda/schedules.h"
#include "tests/gpu/shared_heap.h"
#include "tensor/tensor.h"

namespace megaslide {
namespace {

TEST(SharedHeap, HoldsWhatTestsAllocate) {
  const HostTensor tensor(DType::kF32, {1000});
  const std::vector<float> values(3);
  const auto wide = std::make_unique<testing_support::Array>(testing_support::Array::empty(DType::kF32, 5));
  for (const void* p : {static_cast<const void*>(tensor.data()), static_cast<const void*>(values.data()), static_cast<const void*>(wide->data())})
    EXPECT_TRUE(testing_support::in_shared_heap(p));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  // A block that was given back is used again.
  const auto address = [] { return reinterpret_cast<uintptr_t>(std::make_unique<std::array<double, 77>>().get()); };
  EXPECT_EQ(address(), address());
}

}  // namespace
}  // namespace megaslide

int main(int argc, char** argv) {
  // Tests read results as soon as a launch returns.
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no GPU here");
    return 77;
  }
  megaslide::testing_support::start_shared_heap(size_t{4} << 30);
  megaslide::testing_support::under_emulator = false;
  megaslide::testing_support::finish_device_work = [] { megaslide::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", "a test's kernels"); };
  return RUN_ALL_TESTS();
}
