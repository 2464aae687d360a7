// Layers' state on disk (stream.tier: nvme) instead of in memory: the same bits, less memory, and errors that say where.
#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <list>
#include <thread>

#include "base/philox.h"
#include "model/wan.h"
#include "plan/planner.h"
#include "stream/state_traffic.h"
#include "tests/stream/edge_dropping_device.h"
#include "tests/stream/toy_network.h"
#include "train/checkpoint.h"
#include "train/step.h"
#include "train/training_data.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::Edge;
using testing::EdgeDroppingDevice;
using testing::error_of;
using testing::train;
using testing::Workplace;
using testing_support::TemporaryFolder;
namespace fs = std::filesystem;

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

TEST(DiskTier, SameStateForEveryCodecAndClipMode) {
  for (const AttentionKind kind : {AttentionKind::kDense, AttentionKind::kDsa}) {
    const Workplace w(kind);
    int n = 0;
    for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
             {},
             {"optimizer.masters=fp32", "optimizer.gradients=fp32"},
             {"optimizer.masters=bf16-sr", "optimizer.moments=bf16"},
             {"optimizer.moments=int8", "train.clip=layer", "train.max_grad_norm=0.05"},
             {"model.compute_dtype=fp32", "train.clip=none"},
             {"train.clip=layer", "train.max_grad_norm=0.05", "train.gradient_accumulation_steps=2", "stream.segment=2"}}) {
      const std::string expected = train(w.run(fmt::format("ram-{}", n), sets)).state_hash;
      for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
               {}, {"stream.link.kind=emulated", "stream.slots=3"}, {"stream.async=false"}, {"stream.slots=8", "stream.link.kind=emulated"}}) {
        const auto run = w.run(fmt::format("nvme-{}", n++), with(with(sets, layout), {"stream.tier=nvme"}));
        const TrainSummary s = train(run);
        EXPECT_EQ(s.state_hash, expected) << n << " " << (sets.empty() ? "" : sets.front());
        if (layout.empty()) {
          EXPECT_EQ(s.device_peak_bytes, make_plan(plan_request(run, {})).device.peak);
        }
      }
    }
  }
}

TEST(DiskTier, ValidationSavesAndResumesLeaveTheStateAlone) {
  const Workplace w;
  const std::vector<std::string> sets{"data.validation_fraction=0.4", "train.validate_every_n_steps=2", "output.save_every_n_steps=2"};
  const std::string expected = train(w.run("ram", sets)).state_hash;
  const auto tier = with(sets, {"stream.tier=nvme"});
  EXPECT_EQ(train(w.run("nvme", tier)).state_hash, expected);
  // A checkpoint of the one goes on with the other.
  train(w.run("there", with(tier, {"train.max_train_steps=3"})));
  const TrainSummary there = train(w.run("there", sets));
  EXPECT_EQ(there.resumed_from, 3);
  EXPECT_EQ(there.state_hash, expected);
  train(w.run("back", with(sets, {"train.max_train_steps=3"})));
  const TrainSummary back = train(w.run("back", tier));
  EXPECT_EQ(back.resumed_from, 3);
  EXPECT_EQ(back.state_hash, expected);
}

TEST(DiskTier, LiesWhereItIsToldAndLeavesNothing) {
  const Workplace w;
  const std::string path = w.folder / "fast/disk";
  TrainerOptions o;
  o.threads = 1;
  std::string seen;
  const auto look = [&](const StepMetrics&) {
    EXPECT_TRUE(fs::is_empty(path)) << "the file has no name";
    for (const auto& e : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ec;
      const std::string target = fs::read_symlink(e.path(), ec).string();
      if (target.starts_with(path) && target.ends_with(" (deleted)")) seen = target;
    }
  };
  run_training(w.run("out", {"stream.tier=nvme", "stream.tier_path=" + path, "train.max_train_steps=1"}), o, look);
  EXPECT_FALSE(seen.empty());
  EXPECT_TRUE(fs::is_empty(path));
}

TEST(DiskTier, ADamagedBlockEndsTheRunAndNamesTheLayer) {
  const Workplace w;
  TrainerOptions o;
  o.threads = 1;
  const auto damage = [&](const StepMetrics& m) {
    if (m.step != 2) return;
    for (const auto& e : fs::directory_iterator("/proc/self/fd")) {
      std::error_code ec;
      const std::string target = fs::read_symlink(e.path(), ec).string();
      if (target.find("/.tier-") == std::string::npos) continue;
      const int fd = open(e.path().c_str(), O_RDWR);
      char byte;
      ASSERT_EQ(pread(fd, &byte, 1, 100), 1);
      byte = static_cast<char>(byte ^ 1);
      ASSERT_EQ(pwrite(fd, &byte, 1, 100), 1);
      fsync(fd);
      close(fd);
    }
  };
  const std::string error = error_of([&] { run_training(w.run("out", {"stream.tier=nvme", "output.save_every_n_steps=1"}), o, damage); });
  EXPECT_NE(error.find("read blocks.0. weights of " + (w.folder / "out")), std::string::npos) << error;
  EXPECT_NE(error.find("at offset 0 are not those that were written"), std::string::npos) << error;
  // What was saved before is whole, and the run goes on from there.
  const std::string expected = train(w.run("whole")).state_hash;
  const TrainSummary s = train(w.run("out", {"stream.tier=nvme"}));
  EXPECT_GE(s.resumed_from, 1);
  EXPECT_EQ(s.state_hash, expected);
}

// 14 bytes a parameter of the layers are on disk; in memory are slabs of few layers, however many there are.
TEST(DiskTier, MemoryIsThatOfAFewLayers) {
  Workplace w(AttentionKind::kDense);
  const auto plan_of = [&](int64_t layers, const std::vector<std::string>& sets) {
    PlanRequest r = plan_request(w.run("out", sets), {});
    r.model.layers = layers;
    return make_plan(r);
  };
  const Plan few = plan_of(12, {"stream.tier=nvme"}), many = plan_of(60, {"stream.tier=nvme"}), ram = plan_of(60, {});
  EXPECT_EQ(few.host.weights + few.host.masters + few.host.moments + few.host.gradients,
            many.host.weights + many.host.masters + many.host.moments + many.host.gradients);
  EXPECT_LT(many.host.moments, ram.host.moments / 15) << "of 60 layers two, the embedding and the head";
  EXPECT_EQ(ram.disk.tier, 0);
  EXPECT_EQ(many.disk.tier, 5 * few.disk.tier);
  const Network network = make_wan_network(w.config);
  const int64_t layer = network.layers.front()->layout().elements;
  EXPECT_GE(many.disk.tier, 60 * 14 * layer);
  EXPECT_LT(many.disk.tier, 60 * (14 * layer + 5 * 4096)) << "each part ends at a page";
  EXPECT_EQ(many.device.peak, ram.device.peak);
}

TEST(DiskTier, PlansReckonWithTheDisk) {
  const Workplace w(AttentionKind::kDense);
  MachineConfig machine;
  machine.gemm_bf16 = machine.attention = 1e12;
  machine.host_bandwidth = machine.vector_bandwidth = machine.optimizer_bandwidth = 1e11;
  machine.disk_bandwidth = 1e6;
  machine.disk_read_bandwidth = 2e6;
  const Plan ram = make_plan(plan_request(w.run("out"), machine)), disk = make_plan(plan_request(w.run("out", {"stream.tier=nvme"}), machine));
  EXPECT_EQ(disk.bound_by, "disk");
  EXPECT_GT(disk.waits.disk, 0.5 * disk.step_seconds);
  EXPECT_EQ(ram.waits.disk, 0);
  // Of each parameter 12 bytes are written under the forward and 2 under the backward, 14 and 2 are read; the disk does no two at once.
  const double parameters = static_cast<double>(disk.disk.tier) / 14;
  const double least = parameters * (14 / machine.disk_bandwidth + 14 / machine.disk_read_bandwidth);
  EXPECT_GT(disk.step_seconds, least);
  // Weights of the last two layers are still in their slots, and of the three that there are one is read again.
  EXPECT_LT(disk.step_seconds, 1.2 * least + parameters * 2 / machine.disk_read_bandwidth);
  machine.disk_bytes = 1000;
  const Plan full = make_plan(plan_request(w.run("out", {"stream.tier=nvme"}), machine));
  ASSERT_EQ(full.misfits.size(), 1u);
  EXPECT_EQ(full.misfits.front().find("disk, for the layers' state and checkpoints: "), 0u) << full.misfits.front();
}

TEST(DiskTier, IsProposedWhereMemoryIsShortAndTheDiskHasRoom) {
  Workplace w(AttentionKind::kDense);
  PlanRequest r = plan_request(w.run("out"), {});
  r.model.layers = 400;
  const auto planned = [&](const char* tier) {
    PlanRequest q = r;
    q.run.stream.tier = std::string(tier) == "nvme" ? RunConfig::Tier::kNvme : RunConfig::Tier::kRam;
    return make_plan(q);
  };
  const Plan ram = planned("ram"), disk = planned("nvme");
  r.run.stream.host_budget = disk.host.total() + (int64_t{10} << 20);
  ASSERT_LT(r.run.stream.host_budget, ram.host.total());
  const auto proposed = [&] {
    const auto remedies = make_plan(r).remedies;
    return std::find(remedies.begin(), remedies.end(), "--set stream.tier=nvme") != remedies.end();
  };
  EXPECT_FALSE(proposed()) << "nothing is known of a disk";
  r.machine.disk_bytes = int64_t{1} << 40;
  EXPECT_TRUE(proposed());
  r.machine.disk_bytes = disk.disk.tier;
  EXPECT_FALSE(proposed()) << "no room for a checkpoint beside it";
}

// ---- the schedule --------------------------------------------------------------------------------------------------

constexpr int64_t kWidth = 1024;
constexpr int kLayers = 9;

struct Inputs : testing::ToyInputs {
  explicit Inputs(uint64_t series) : ToyInputs(kWidth, {1, 1, 2, 1, 1}, series) {}
};

struct Settings {
  ClipMode clip = ClipMode::kExact;
  bool on_disk = true;
  int slots = 2, segment = 1;
  double write_seconds = 0;  // more than the disk takes, a request
  int fail_at = -1;          // number of the request that the disk answers with EIO
};

// Hash after a few steps, or what went wrong.
std::string toy_steps(Device& device, const Settings& run) {
  static const TemporaryFolder folder;
  const Network network = testing::toy_network(kWidth, kLayers);
  HostStoreOptions options{.training = true};
  options.gradient_slots = gradient_slots(run.clip);
  options.on_disk = run.on_disk;
  options.tier_path = folder.path();
  options.slots = run.slots;
  int requests = 0;
  options.block_file.answer = [&](const BlockRequest& r, int64_t answer) -> int64_t {
    if (r.write) std::this_thread::sleep_for(std::chrono::duration<double>(run.write_seconds));
    return requests++ == run.fail_at ? -EIO : answer;
  };
  // Until the end: where an edge is missing a step may be read after its last event.
  std::list<Inputs> kept;
  ThreadPool pool(1);
  std::string losses;
  try {
    HostStore store(network, options);
    testing::fill_toy(store);
    PipelineOptions o;
    o.slots = run.slots;
    o.shapes = {Inputs(0).shape};
    o.stash.segment = run.segment;
    TrainStep step(device, network, store, o, {.clip = run.clip}, 0);
    for (uint64_t s = 0; s < 4; ++s) {
      const MicroBatch batch = kept.emplace_back(s).batch();
      step.begin({&batch, 1}, 1e-2);
      losses += fmt::format("{} ", step.finish().loss);
    }
    step.drain();
    device.synchronize();
    return losses + state_hash(store, {}, pool);
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(DiskTier, SameBitsUnderJitter) {
  for (const ClipMode clip : {ClipMode::kExact, ClipMode::kLayer}) {
    const auto plain = make_cpu_device({.threads = 1, .async = false});
    const std::string expected = toy_steps(*plain, {.clip = clip, .on_disk = false});
    for (const int slots : {2, 3, 16})
      for (const int segment : {1, 2, 4})
        for (const LinkKind link : {LinkKind::kShared, LinkKind::kEmulated}) {
          const auto device = make_cpu_device({.threads = 1, .link = link, .jitter = 3e-4});
          EXPECT_EQ(toy_steps(*device, {.clip = clip, .slots = slots, .segment = segment}), expected) << slots << " " << segment;
        }
  }
}

// Wherever it happens, the step in which it does says so, and nothing hangs.
TEST(DiskTier, AFailingDiskEndsTheStep) {
  int failures = 0;
  for (int at = 0; at < 600; at += 7) {
    const auto device = make_cpu_device({.threads = 1});
    const std::string result = toy_steps(*device, {.fail_at = at});
    if (result.find("Input/output error") == std::string::npos) continue;
    ++failures;
    EXPECT_NE(result.find(" of "), std::string::npos) << result;
    EXPECT_NE(result.find("blocks."), std::string::npos) << result;
  }
  EXPECT_GT(failures, 40);
}

TEST(DiskTier, EveryEdgeIsNeeded) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "races on purpose, which is what ThreadSanitizer reports";
#endif
  using enum StreamKind;
  struct Case {
    Edge edge;
    const char* what;
    LinkKind link = LinkKind::kEmulated;
    ClipMode clip = ClipMode::kExact;
    int slots = 2;
    double jitter = 2e-3, write_seconds = 0;
  };
  for (const Case& c : {Case{{kHost, kDisk}, "optimizer before its state is read"},
                        Case{{kHost, kDisk}, "optimizer under the backward before its state is read", LinkKind::kEmulated, ClipMode::kLayer},
                        Case{{kDisk, kHost}, "write before the optimizer"},
                        Case{{kDisk, kHost}, "write before the optimizer under the backward", LinkKind::kEmulated, ClipMode::kLayer},
                        Case{{kUpload, kDisk}, "upload before its weights are read"},
                        Case{{kDisk, kCompute}, "read into weights that are used in place", LinkKind::kShared},
                        // Where weights are read in the backward pass too, those readings come after the writes in question; and only a slow
                        // disk falls behind.
                        Case{{kDownload, kDisk}, "gradient into a slab that is still written", LinkKind::kEmulated, ClipMode::kExact, 16, 0, 2e-3}}) {
    const auto sync = make_cpu_device({.threads = 1, .async = false});
    const std::string expected = toy_steps(*sync, {.clip = c.clip});
    bool noticed = false;
    for (int attempt = 0; attempt < 20 && !noticed; ++attempt) {
      const auto inner = make_cpu_device({.threads = 1, .link = c.link, .jitter = c.jitter});
      EdgeDroppingDevice device(*inner, c.edge);
      noticed = toy_steps(device, {.clip = c.clip, .slots = c.slots, .write_seconds = c.write_seconds}) != expected;
      EXPECT_GT(device.dropped, 0) << c.what;
    }
    EXPECT_TRUE(noticed) << c.what;
  }
}

}  // namespace
}  // namespace megaslide
