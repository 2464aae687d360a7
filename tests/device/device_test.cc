#include "device/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "device/arena.h"
#include "device/trace.h"

namespace megaslide {
namespace {

TEST(Arena, FirstFitReusesHolesAndCountsThePeak) {
  Arena a(0);
  const int64_t x = a.allocate(1, "x", MemoryCategory::kOther), y = a.allocate(300, "y", MemoryCategory::kWeights);
  EXPECT_EQ(x, 0);
  EXPECT_EQ(y, 256);
  EXPECT_EQ(a.report().peak, 256 + 512);
  a.release(x);
  EXPECT_EQ(a.allocate(512, "z", MemoryCategory::kOther), 768) << "a hole that is too small stays";
  EXPECT_EQ(a.allocate(200, "w", MemoryCategory::kOther), 0);
  EXPECT_EQ(a.report().peak, 256 + 512 + 512);
  EXPECT_EQ(a.report().peak_by_category[static_cast<size_t>(MemoryCategory::kWeights)], 512);
}

TEST(Arena, ThePeakIsThatOfItsInstant) {
  Arena a(0);
  const int64_t x = a.allocate(512, "x", MemoryCategory::kWeights);
  a.release(x);
  a.allocate(256, "y", MemoryCategory::kOther);
  ASSERT_EQ(a.report().at_peak.size(), 1u);
  EXPECT_EQ(a.report().at_peak[0].name, "x");
  a.allocate(512, "z", MemoryCategory::kActivations);
  EXPECT_EQ(a.report().at_peak.size(), 2u);
  EXPECT_EQ(a.report().peak_by_category[static_cast<size_t>(MemoryCategory::kWeights)], 0);
}

TEST(Arena, BudgetRefusesWithALedger) {
  Arena a(1024);
  a.allocate(512, "weights of layer 1", MemoryCategory::kWeights);
  try {
    a.allocate(513, "workspace", MemoryCategory::kWorkspace);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kNo);
    EXPECT_NE(std::string(e.what()).find("weights of layer 1"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("remedy"), std::string::npos);
  }
  EXPECT_EQ(a.allocate(512, "fits", MemoryCategory::kOther), 512) << "a refusal changes nothing";
}

// A pipeline of two streams: each item is produced on one and consumed on the other, the slot is reused. Any missing
// order shows up in the sum.
int64_t produce_and_consume(const CpuDeviceOptions& options) {
  auto d = make_cpu_device(options);
  int64_t slot[2] = {0, 0}, sum = 0;
  Event ready[2], free_slot[2];
  for (int64_t i = 1; i <= 200; ++i) {
    const size_t k = static_cast<size_t>(i % 2);
    d->wait(d->upload(), free_slot[k]);
    d->upload().enqueue("produce", {}, [&slot, k, i] { slot[k] = i; });
    ready[k] = d->record(d->upload());
    d->wait(d->compute(), ready[k]);
    d->compute().enqueue("consume", {}, [&slot, &sum, k, i] { sum += slot[k] * i; });
    free_slot[k] = d->record(d->compute());
  }
  d->synchronize();
  return sum;
}

TEST(CpuDevice, EventsOrderStreams) {
  const int64_t expected = 200 * 201 * 401 / 6;
  EXPECT_EQ(produce_and_consume({.threads = 2}), expected);
  EXPECT_EQ(produce_and_consume({.threads = 2, .async = false}), expected);
  EXPECT_EQ(produce_and_consume({.threads = 2, .jitter = 3e-4}), expected);
}

TEST(CpuDevice, AMissingEdgeIsSeenUnderJitter) {
  // The same exchange without the event between the streams: with delays the consumer must now and then come first.
  auto d = make_cpu_device({.threads = 1, .jitter = 2e-3});
  int late = 0;
  for (int i = 0; i < 60; ++i) {
    std::atomic<int> slot{0};
    int seen = -1;
    d->upload().enqueue("produce", {}, [&] { slot = 1; });
    d->compute().enqueue("consume", {}, [&] { seen = slot; });
    d->synchronize();
    late += seen == 0;
  }
  EXPECT_GT(late, 0);
}

TEST(CpuDevice, FailureStopsTheStreamsAndNamesItsPlace) {
  auto d = make_cpu_device({.threads = 1});
  bool ran = false;
  d->set_phase("backward 3");
  d->download().enqueue("download gradient", {}, [] { throw Error("disk full"); });
  const Event e = d->record(d->download());
  d->wait(d->compute(), e);
  d->compute().enqueue("next", {}, [&] { ran = true; });
  try {
    d->synchronize();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "backward 3: download gradient: disk full");
  }
  EXPECT_FALSE(ran) << "work behind a failure is dropped";
}

TEST(CpuDevice, WatchdogTellsWhatStreamsWaitFor) {
  auto d = make_cpu_device({.threads = 1, .stall_timeout = 0.6});
  std::atomic<bool> go{false};
  std::string logged;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { logged += text; });
  d->set_phase("forward 7");
  d->compute().enqueue("stuck kernel", {}, [&] {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  try {
    d->synchronize();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("stuck kernel in forward 7"), std::string::npos) << error.what();
  }
  EXPECT_NE(logged.find("stuck kernel in forward 7"), std::string::npos) << "said before anybody waits for the stuck stream: " << logged;
  go = true;
  set_log_sink(before);
}

TEST(CpuDevice, HostWorkIsNoWorkOfTheDevice) {
  for (const bool async : {true, false}) {
    auto d = make_cpu_device({.threads = 1, .async = async});
    d->compute().enqueue("kernel", {KernelClass::kGemm, 100, 0}, [] {});
    d->host().enqueue("adamw", {KernelClass::kOptimizer, 1000, 0}, [] {});
    d->host().enqueue("norm", {KernelClass::kHost, 1000, 0}, [] {});
    d->synchronize();
    EXPECT_EQ(d->take_times().flops, 100) << async;
  }
}

TEST(CpuDevice, EmulatedLinkTakesItsTimeWithoutBurningTheProcessor) {
  auto d = make_cpu_device({.threads = 1, .link = LinkKind::kEmulated, .bandwidth = 20e6});
  std::vector<std::byte> host(4 << 20, std::byte{7});
  void* device = d->allocate(4 << 20, "x", MemoryCategory::kOther);
  const std::clock_t cpu = std::clock();
  const double begin = d->now();
  d->copy(d->upload(), device, host.data(), 4 << 20, CopyKind::kUpload, "upload");
  d->synchronize();
  const double seconds = d->now() - begin, burnt = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
  EXPECT_GE(seconds, 0.2);
  EXPECT_LT(burnt, 0.15) << "the wait is a sleep";
  EXPECT_EQ(std::memcmp(device, host.data(), host.size()), 0);
}

TEST(CpuDevice, WaitsAreAttributedToTheirSource) {
  auto d = make_cpu_device({.threads = 1, .trace = true});
  d->upload().enqueue("slow upload", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
  d->wait(d->compute(), d->record(d->upload()));
  d->compute().enqueue("kernel", {KernelClass::kGemm, 100, 0}, [] {});
  d->synchronize();
  const StreamTimes t = d->take_times();
  EXPECT_GE(t.wait_upload(), 0.05);
  EXPECT_EQ(t.flops, 100);
  const auto trace = d->take_trace();
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_STREQ(trace[0].name, "slow upload");
  const std::string json = trace_json(trace, {}, d->phases(), "test \"run\"");
  EXPECT_NE(json.find("\\\"run\\\""), std::string::npos);
}

TEST(CpuDevice, AnUnlimitedBudgetTakesWhatAddressSpaceThereIs) {
  // 47 bits hold at most 127 devices of a terabyte: one of these must do with less, works, and says when it is full.
  std::vector<std::unique_ptr<Device>> many;
  bool refused = false;
  while (!refused && many.size() < 128) {
    many.push_back(make_cpu_device({.threads = 1, .async = false}));
    *static_cast<char*>(many.back()->allocate(1, "x", MemoryCategory::kOther)) = 1;
    try {
      many.back()->allocate(int64_t{1} << 39, "half a terabyte", MemoryCategory::kOther);
    } catch (const Error& e) {
      refused = true;
      EXPECT_NE(std::string(e.what()).find("address space"), std::string::npos) << e.what();
    }
  }
  EXPECT_TRUE(refused);
}

TEST(SimDevice, OverlapAndContentionByTheClock) {
  SimDeviceOptions o;
  o.rates.gemm = 1e9;
  o.link = LinkKind::kEmulated;
  o.bandwidth = 1e9;
  for (const bool async : {true, false}) {
    o.async = async;
    auto d = make_sim_device(o);
    for (int i = 0; i < 10; ++i) {
      d->copy(d->upload(), nullptr, nullptr, 1000000000, CopyKind::kUpload, "upload");
      d->wait(d->compute(), d->record(d->upload()));
      d->compute().enqueue("gemm", {KernelClass::kGemm, 1e9, 0}, nullptr);
    }
    d->synchronize();
    EXPECT_DOUBLE_EQ(d->now(), async ? 11 : 20);
  }
  o.rates.unified = true;
  o.rates.optimizer_bytes = 1e9;
  o.async = true;
  auto d = make_sim_device(o);
  d->compute().enqueue("gemm", {KernelClass::kGemm, 1e9, 0}, nullptr);
  d->host().enqueue("adamw", {KernelClass::kOptimizer, 0, 1e9}, nullptr);
  d->synchronize();
  EXPECT_DOUBLE_EQ(d->now(), 2) << "one processor does one thing at a time";
}

// What is issued later may begin earlier, and takes what is left free.
TEST(SimDevice, AWaitingTaskDoesNotHoldTheProcessor) {
  SimDeviceOptions o;
  o.rates.gemm = o.rates.optimizer_bytes = 1e9;
  o.rates.unified = true;
  o.link = LinkKind::kEmulated;
  o.bandwidth = 1e9;
  for (const double work : {0.5, 1.0, 1.5, 2.0}) {
    auto d = make_sim_device(o);
    d->copy(d->upload(), nullptr, nullptr, 1000000000, CopyKind::kUpload, "upload");
    d->wait(d->compute(), d->record(d->upload()));
    d->compute().enqueue("gemm", {KernelClass::kGemm, 1e9, 0}, nullptr);
    d->host().enqueue("adamw", {KernelClass::kOptimizer, 0, work * 1e9}, nullptr);
    d->host().enqueue("adamw", {KernelClass::kOptimizer, 0, 0.25e9}, nullptr);
    d->synchronize();
    EXPECT_DOUBLE_EQ(d->now(), std::max(2.0, 1 + work + 0.25)) << work;
    d->compute().enqueue("gemm", {KernelClass::kGemm, 1e9, 0}, nullptr);
    d->synchronize();
    EXPECT_DOUBLE_EQ(d->now(), std::max(2.0, 1 + work + 0.25) + 1) << "what is over is forgotten";
  }
}

// An optimizer that waits for the disk makes an upload wait, and that the device: the disk's, the optimizer's and the link's share.
TEST(SimDevice, WaitsForTheDiskAreItsOwn) {
  SimDeviceOptions o;
  o.rates.disk_read = 1e9;
  o.rates.optimizer_bytes = 1e9;
  o.link = LinkKind::kEmulated;
  o.bandwidth = 1e9;
  auto d = make_sim_device(o);
  d->disk().enqueue("read", {KernelClass::kDiskRead, 0, 1e9}, nullptr);
  d->wait(d->host(), d->record(d->disk()));
  d->host().enqueue("adamw", {KernelClass::kOptimizer, 0, 0.5e9}, nullptr);
  d->wait(d->upload(), d->record(d->host()));
  d->copy(d->upload(), nullptr, nullptr, 250000000, CopyKind::kUpload, "upload");
  d->wait(d->compute(), d->record(d->upload()));
  d->synchronize();
  StreamTimes t = d->take_times();
  EXPECT_DOUBLE_EQ(t.wait_disk(), 1);
  EXPECT_DOUBLE_EQ(t.wait_optimizer(), 0.5);
  EXPECT_DOUBLE_EQ(t.wait_upload(), 0.25);
  // Weights that come from the disk without an update.
  d->disk().enqueue("read", {KernelClass::kDiskRead, 0, 2e9}, nullptr);
  d->wait(d->upload(), d->record(d->disk()));
  d->wait(d->compute(), d->record(d->upload()));
  d->synchronize();
  t = d->take_times();
  EXPECT_DOUBLE_EQ(t.wait_disk(), 2);
  EXPECT_DOUBLE_EQ(t.wait_optimizer(), 0);
  EXPECT_DOUBLE_EQ(t.wait_upload(), 0);
}

TEST(SimDevice, WorkThatWaitsLeavesTheProcessorToOthers) {
  SimDeviceOptions o;
  o.rates.gemm = o.rates.disk_read = o.rates.optimizer_bytes = 1e9;
  o.rates.unified = true;
  auto d = make_sim_device(o);
  d->disk().enqueue("read", {KernelClass::kDiskRead, 0, 10e9}, nullptr);
  d->wait(d->host(), d->record(d->disk()));
  d->host().enqueue("adamw", {KernelClass::kOptimizer, 0, 1e9}, nullptr);  // from 10 to 11
  d->compute().enqueue("gemm", {KernelClass::kGemm, 8e9, 0}, nullptr);     // from 0 to 8
  const Event first = d->record(d->compute());
  d->compute().enqueue("gemm", {KernelClass::kGemm, 3e9, 0}, nullptr);     // from 8 to 10, and from 11 to 12
  d->synchronize(first);
  EXPECT_DOUBLE_EQ(d->now(), 8);
  d->synchronize();
  EXPECT_DOUBLE_EQ(d->now(), 12);
}

TEST(SimDevice, SameArenaAsCpu) {
  auto sim = make_sim_device({});
  auto cpu = make_cpu_device({.threads = 1});
  for (Device* d : {sim.get(), cpu.get()}) {
    void* a = d->allocate(1000, "a", MemoryCategory::kOther);
    d->allocate(5000, "b", MemoryCategory::kOther);
    d->release(a);
    d->allocate(100, "c", MemoryCategory::kOther);
  }
  EXPECT_EQ(sim->memory().peak, cpu->memory().peak);
}

}  // namespace
}  // namespace megaslide
