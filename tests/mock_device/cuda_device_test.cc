// The cuda device over the mock of the CUDA runtime, without kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "device/device.h"
#include "stream/host_memory.h"
#include "tests/mock_cuda/mock_runtime.h"
#include "tests/support/error_text.h"

namespace megaslide {
namespace {

using mock_cuda::runtime_counts;
using mock_cuda::RuntimeFaults;
using mock_cuda::set_runtime_faults;
using testing_support::error_of;

TEST(CudaDevice, TheLargestIsTakenAndWhatIsMissingIsNamed) {
  CudaDeviceOptions o;
  o.threads = 1;
  set_runtime_faults({.devices = {int64_t{1} << 30, int64_t{4} << 30, int64_t{2} << 30}});
  EXPECT_EQ(cuda_device_info(-1).memory, int64_t{4} << 30);
  EXPECT_EQ(cuda_device_info(0).memory, int64_t{1} << 30);
  const auto message = [&] { return error_of([&] { make_cuda_device(o); }); };
  o.index = 3;
  EXPECT_NE(message().find("CUDA device 3: there are 3"), std::string::npos) << message();
  o.index = -1;
  set_runtime_faults({.devices = {}});
  EXPECT_NE(message().find("cudaGetDeviceCount"), std::string::npos) << message();
  set_runtime_faults({});
  o.budget = int64_t{16} << 30;
  EXPECT_NE(message().find("cudaMalloc of an arena of 17179869184 bytes"), std::string::npos) << message();
  o.budget = int64_t{1} << 30;
  const auto device = make_cuda_device(o);
  EXPECT_EQ(device->memory().budget, o.budget);
  EXPECT_NE(error_of([&] { device->allocate(int64_t{2} << 30, "too much", MemoryCategory::kOther); }).find("too much"), std::string::npos);
}

// A kernel's fault is noticed at the next call, which names itself; what follows is dropped, and nothing hangs.
TEST(CudaDevice, ABrokenDeviceIsNamedAndNothingHangs) {
  set_runtime_faults({});
  const auto device = make_cuda_device({.threads = 1});
  alignas(64) static float host[64];
  void* memory = device->allocate(256, "memory", MemoryCategory::kOther);
  device->set_phase("forward 3");
  device->copy(device->upload(), memory, host, 256, CopyKind::kUpload, "upload");
  device->synchronize();
  set_runtime_faults({.fail_at = 1, .kind = RuntimeFaults::Kind::kLaunch});
  const Event up = device->record(device->upload());
  device->wait(device->compute(), up);
  device->copy(device->download(), host, memory, 256, CopyKind::kDownload, "download");
  const std::string message = error_of([&] { device->synchronize(); });
  EXPECT_NE(message.find("cuda"), std::string::npos) << message;
  EXPECT_NE(message.find("cudaErrorLaunchFailure"), std::string::npos) << message;
  set_runtime_faults({});
}

// The host's work waits for the device's and the device's for the host's, by events alone.
TEST(CudaDevice, EventsOrderHostAndDevice) {
  set_runtime_faults({.slow_copy_us = 2000});
  const auto device = make_cuda_device({.threads = 1, .jitter = 0.002});
  constexpr int64_t kFloats = 1 << 10;
  std::vector<float> a(kFloats), b(kFloats);
  auto* memory = static_cast<float*>(device->allocate(kFloats * 4, "memory", MemoryCategory::kOther));
  for (int round = 0; round < 20; ++round) {
    device->host().enqueue("fill", {}, [&, round] { std::fill(a.begin(), a.end(), static_cast<float>(round)); });
    device->wait(device->upload(), device->record(device->host()));
    device->copy(device->upload(), memory, a.data(), kFloats * 4, CopyKind::kUpload, "upload");
    device->wait(device->compute(), device->record(device->upload()));
    device->copy(device->compute(), memory, memory, kFloats * 4, CopyKind::kWithinDevice, "nothing");
    device->wait(device->download(), device->record(device->compute()));
    device->copy(device->download(), b.data(), memory, kFloats * 4, CopyKind::kDownload, "download");
    device->wait(device->host(), device->record(device->download()));
    device->host().enqueue("check", {}, [&, round] { EXPECT_EQ(b, std::vector<float>(kFloats, static_cast<float>(round))); });
    // The next round overwrites what this one still reads.
    device->wait(device->upload(), device->record(device->host()));
  }
  device->synchronize();
  const StreamTimes t = device->take_times();
  EXPECT_GE(t.busy[static_cast<size_t>(StreamKind::kUpload)], 20 * 0.002);
  EXPECT_GE(t.wait(StreamKind::kCompute, StreamKind::kUpload), 20 * 0.002);
  set_runtime_faults({});
}

TEST(CudaDevice, TracesSayWhenTheDeviceDidWhat) {
  set_runtime_faults({.slow_copy_us = 5000});
  const auto device = make_cuda_device({.threads = 1, .trace = true});
  std::vector<float> host(256);
  void* memory = device->allocate(1024, "memory", MemoryCategory::kOther);
  device->set_phase("forward 1");
  device->copy(device->upload(), memory, host.data(), 1024, CopyKind::kUpload, "first");
  device->copy(device->upload(), memory, host.data(), 1024, CopyKind::kUpload, "second");
  device->synchronize();
  const auto spans = device->take_trace();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[0].name, "first");
  EXPECT_EQ(spans[0].stream, StreamKind::kUpload);
  EXPECT_EQ(device->phases()[static_cast<size_t>(spans[0].phase)], "forward 1");
  EXPECT_GE(spans[0].end - spans[0].begin, 0.005);
  EXPECT_LE(spans[0].end, spans[1].begin);
  EXPECT_LE(spans[1].end, device->now());
  set_runtime_faults({});
}

// Several pieces of the ring, both ways, and memory that is locked meanwhile.
TEST(CudaDevice, CopiesOfAnyMemoryArrive) {
  set_runtime_faults({});
  const auto device = make_cuda_device({.threads = 1});
  constexpr int64_t kFloats = (int64_t{40} << 20) / 4 + 3;
  HostMemory memory(false);
  int64_t bytes = 0;
  auto *a = static_cast<float*>(memory.allocate(kFloats * 4, bytes)), *b = static_cast<float*>(memory.allocate(kFloats * 4, bytes));
  std::iota(a, a + kFloats, 0.f);
  void* on_device = device->allocate(kFloats * 4, "memory", MemoryCategory::kOther);
  for (const bool locked : {false, true}) {
    std::fill(b, b + kFloats, 0.f);
    const auto before = runtime_counts();
    PinnedMemory pinned, nested;
    if (locked) {
      pinned = PinnedMemory(*device, memory.spans());
      nested = PinnedMemory(*device, memory.spans());
      nested.clear();
    }
    device->copy(device->upload(), on_device, a, kFloats * 4, CopyKind::kUpload, "upload");
    device->wait(device->download(), device->record(device->upload()));
    device->copy(device->download(), b, on_device, kFloats * 4, CopyKind::kDownload, "download");
    device->synchronize();
    EXPECT_TRUE(std::equal(a, a + kFloats, b)) << locked;
    EXPECT_EQ(runtime_counts().pageable_copies, before.pageable_copies);
    EXPECT_EQ(runtime_counts().copies - before.copies, locked ? 2 : 2 * 11) << "pieces of 4 MiB";
    EXPECT_EQ(runtime_counts().registrations - before.registrations, locked ? 2 : 0);
  }
}

TEST(CudaDevice, NothingIsLeftOfIt) {
  set_runtime_faults({});
  const auto before = runtime_counts().live;
  make_cuda_device({.threads = 1});
  EXPECT_EQ(runtime_counts().live, before);
  // Nor of one that could not be made, at whatever call that was.
  for (int64_t call = 1; call < 60; ++call) {
    set_runtime_faults({.fail_at = call});
    const std::string message = error_of([] { make_cuda_device({.threads = 1})->synchronize(); });
    set_runtime_faults({});
    EXPECT_EQ(runtime_counts().live, before) << "call " << call << ": " << message;
  }
}

}  // namespace
}  // namespace megaslide
