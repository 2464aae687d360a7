// Whole runs on the cuda device, over the mock of the CUDA runtime: against the same runs on the cpu device, and under
// everything that the schedule leaves open.
#include <gtest/gtest.h>

#include "config/machine_config.h"
#include "kernels/gemm/gemm_cuda.h"
#include "plan/calibrate_device.h"
#include "plan/planner.h"
#include "tests/mock_cuda/mock_runtime.h"
#include "tests/train/training_fixture.h"
#include "train/metrics.h"

namespace megaslide {
namespace {

using mock_cuda::runtime_counts;
using mock_cuda::RuntimeCounts;
using mock_cuda::RuntimeFaults;
using mock_cuda::set_runtime_faults;
using testing::Workplace;

struct Outcome {
  TrainSummary summary;
  std::vector<StepMetrics> steps;
  std::vector<RuntimeCounts> counts;  // after each step
};

Outcome train_on(Backend backend, const RunConfig& config, double jitter = 0) {
  TrainerOptions o;
  o.threads = 2;
  o.backend = backend;
  o.jitter = jitter;
  Outcome r;
  r.summary = run_training(config, o, [&](const StepMetrics& m) {
    r.steps.push_back(m);
    r.counts.push_back(runtime_counts());
  });
  return r;
}
Outcome on_cuda(const RunConfig& config, double jitter = 0) { return train_on(Backend::kCuda, config, jitter); }

const std::vector<Shape> kOneClip = {{16, 2, 8, 8}};
const std::string kThreeSteps = "train.max_train_steps=3", kOne = "data.batch_size=1", kFp32 = "model.compute_dtype=fp32";

Plan plan_on_cuda(const RunConfig& run) {
  MachineConfig machine;
  machine.device = "cuda";
  machine.unified = false;
  return make_plan(plan_request(run, machine));
}

// Operands of products and attention are rounded to 8 bits of significand on either side and summed in other orders, so
// what leaves a layer differs by a few of 2^-8 of it where sums cancel; a loss is the mean over thousands of such values,
// whose rounding errors have either sign. In fp32 the same holds with 2^-24.
TEST(CudaDevice, LearnsAsTheCpuDoesAndTakesWhatIsPlanned) {
  set_runtime_faults({});
  for (const AttentionKind kind : {AttentionKind::kDense, AttentionKind::kWindow, AttentionKind::kDsa})
    for (const bool fp32 : {false, true}) {
      const Workplace w(kind, kOneClip);
      std::vector<std::string> sets{kThreeSteps, kOne};
      if (fp32) sets.push_back(kFp32);
      const RunConfig run = w.run("cuda", sets);
      const Outcome cpu = train_on(Backend::kCpu, w.run("cpu", sets)), cuda = on_cuda(run);
      ASSERT_EQ(cuda.steps.size(), 3u);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(cuda.steps[i].loss, cpu.steps[i].loss, cpu.steps[i].loss * (fp32 ? 1e-5 : 1.0 / 256)) << attention_kind_name(kind) << " step " << i + 1;
        EXPECT_NEAR(cuda.steps[i].grad_norm, cpu.steps[i].grad_norm, cpu.steps[i].grad_norm * (fp32 ? 1e-4 : 4.0 / 256)) << attention_kind_name(kind);
      }
      EXPECT_EQ(cuda.summary.device_peak_bytes, plan_on_cuda(run).device.peak) << attention_kind_name(kind);
      EXPECT_EQ(runtime_counts().live, 0);
    }
}

// Codes of 8 bits are equal on both devices but where an operand's bf16 rounding turned, which moves a code by one of its steps of
// 2^-3: as many operands in a thousand as their rounding errors say, a thirtieth of 2^-3 of a loss at most.
TEST(CudaDevice, LearnsInEightBitsAsTheCpuDoesAndTakesWhatIsPlanned) {
  set_runtime_faults({});
  const Workplace w(AttentionKind::kDsa, kOneClip);
  const std::vector<std::string> sets{kThreeSteps, kOne, "model.fp8_forward=true"};
  const RunConfig run = w.run("cuda", sets);
  const Outcome bf16 = train_on(Backend::kCpu, w.run("bf16", {kThreeSteps, kOne})), cpu = train_on(Backend::kCpu, w.run("cpu", sets)), cuda = on_cuda(run);
  ASSERT_EQ(cuda.steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(cuda.steps[i].loss, cpu.steps[i].loss, cpu.steps[i].loss / 240) << i;
    EXPECT_NEAR(cpu.steps[i].loss, bf16.steps[i].loss, bf16.steps[i].loss / 8) << i;
  }
  // A new network's head is zero: its first loss does not depend on the blocks.
  EXPECT_NE(cpu.steps[2].loss, bf16.steps[2].loss);
  EXPECT_EQ(cuda.summary.device_peak_bytes, plan_on_cuda(run).device.peak);
  EXPECT_EQ(runtime_counts().live, 0);
}

TEST(CudaDevice, EightBitsNeedADeviceThatHasThem) {
  EXPECT_NO_THROW(require_fp8_products({.name = "L40S", .memory = 0, .free = 0, .capability = 89}));
  try {
    require_fp8_products({.name = "A100", .memory = 0, .free = 0, .capability = 80});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("A100 (sm_80) has no products in 8 bits"), std::string::npos) << e.what();
  }
}

TEST(CudaDevice, SameStateWhateverTheScheduleLeavesOpen) {
  set_runtime_faults({});
  const Workplace w(AttentionKind::kDsa, kOneClip);
  const std::vector<std::string> base{"train.max_train_steps=2", kOne};
  const std::string expected = on_cuda(w.run("whole", base)).summary.state_hash;
  int n = 0;
  const auto hash = [&](std::vector<std::string> sets, double jitter = 0) {
    sets.insert(sets.begin(), base.begin(), base.end());
    return on_cuda(w.run("out" + std::to_string(n++), sets), jitter).summary.state_hash;
  };
  EXPECT_EQ(hash({"stream.async=false"}), expected);
  EXPECT_EQ(hash({"stream.stash=host"}, 0.002), expected);
  EXPECT_EQ(hash({"stream.segment=2"}), expected);
  EXPECT_EQ(hash({"stream.tier=nvme"}, 0.002), expected);
  EXPECT_EQ(hash({"optimizer.device=device"}, 0.002), expected);
  set_runtime_faults({.slow_copy_us = 3000});
  EXPECT_EQ(hash({}), expected) << "uploads late";
  set_runtime_faults({.fail_at = 1, .kind = RuntimeFaults::Kind::kRefused});
  std::string told;
  told = testing::log_of([&] { EXPECT_EQ(hash({}), expected) << "host memory is not locked"; });
  EXPECT_NE(told.find("cannot be locked"), std::string::npos);
  EXPECT_NE(told.find("limit on locked memory"), std::string::npos);
  set_runtime_faults({});
}

TEST(CudaDevice, NothingIsAllocatedAndNothingWaitsForTheDeviceOnceUnderWay) {
  set_runtime_faults({});
  const Workplace w(AttentionKind::kDense, kOneClip);
  int n = 0;
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{{}, {"stream.stash=host"}, {"optimizer.device=device"}, {"stream.tier=nvme"}}) {
    std::vector<std::string> all{"train.max_train_steps=6", kOne};
    all.insert(all.end(), sets.begin(), sets.end());
    const Outcome r = on_cuda(w.run("out" + std::to_string(n++), all));
    const RuntimeCounts &second = r.counts[1], &last = r.counts.back();
    EXPECT_EQ(last.allocations, second.allocations);
    EXPECT_EQ(last.registrations, second.registrations);
    EXPECT_EQ(last.pageable_copies, 0);
    EXPECT_EQ(last.synchronous_copies, 0);
    EXPECT_EQ(last.synchronizations, 0);
    EXPECT_GT(last.kernels, second.kernels);
    EXPECT_GT(last.copies, second.copies);
    EXPECT_EQ(runtime_counts().live, 0);
  }
}

TEST(CudaDevice, ResumedOnTheDeviceEqualsUninterrupted) {
  set_runtime_faults({});
  const Workplace w(AttentionKind::kDense, kOneClip);
  const std::string expected = on_cuda(w.run("whole", {kThreeSteps, kOne})).summary.state_hash;
  on_cuda(w.run("parts", {"train.max_train_steps=1", kOne}));
  EXPECT_EQ(on_cuda(w.run("parts", {kThreeSteps, kOne})).summary.state_hash, expected);
}

// What it measures means nothing here; that it measures all and leaves nothing behind does.
TEST(CudaDevice, IsMeasuredByItsOwnClock) {
  set_runtime_faults({.slow_copy_us = 3000});
  {
    const auto device = make_cuda_device({.threads = 1, .trace = true});
    const BlockRates block = measure_block(*device, testing::small_model(), {1, 2, 4, 4, 8}, 0);
    for (const double rate : {block.gemm, block.attention, block.vector_bytes, block.pack_bytes}) EXPECT_GT(rate, 0);
    EXPECT_GT(measure_square_products(*device, 64, DType::kBF16), 0);
    EXPECT_GT(measure_launches(*device), 0);
    int loads = 0;
    const LinkRates link = measure_link(*device, [&] { ++loads; });
    EXPECT_GT(loads, 0);
    EXPECT_LE(link.up, (1 << 20) / 3e-3) << "slower than the delay of each copy";
    EXPECT_LE(link.down, (1 << 20) / 3e-3);
    EXPECT_GT(link.both, link.up) << "both ways run at once";
    EXPECT_LE(link.derating, 1);
    EXPECT_GT(link.derating, 0);
    EXPECT_EQ(device->memory().in_use, static_cast<int64_t>(cuda::kGemmWorkspaceBytes));
  }
  EXPECT_EQ(runtime_counts().live, 0);
  set_runtime_faults({});
}

}  // namespace
}  // namespace megaslide
