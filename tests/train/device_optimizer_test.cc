// Adam on the device ends in the state of Adam on the host, whatever the codec, the clipping and the schedule, takes the
// device memory that the plan says, and needs each of its edges.
#include "train/device_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "io/model_directory.h"
#include "model/wan.h"
#include "plan/planner.h"
#include "tests/stream/edge_dropping_device.h"
#include "train/checkpoint.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::EdgeDroppingDevice;
using testing::train;
using testing::Workplace;
using Sets = std::vector<std::string>;

Sets operator+(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(DeviceOptimizer, SameStateForEveryCodecAndThePlannedPeak) {
  const Workplace w(AttentionKind::kDense);
  for (const Sets& codecs : {Sets{}, Sets{"optimizer.masters=fp32", "optimizer.moments=int8"}, Sets{"optimizer.masters=bf16-sr", "optimizer.moments=bf16"},
                             Sets{"optimizer.gradients=fp32"}, Sets{"model.compute_dtype=fp32", "optimizer.masters=fp32"}}) {
    const Sets steps = codecs + Sets{"train.max_train_steps=3"};
    const std::string expected = train(w.run("host" + std::to_string(codecs.size()) + (codecs.empty() ? "" : codecs[0]), steps)).state_hash;
    for (const char* link : {"emulated", "shared"}) {
      const auto run = w.run(fmt::format("device{}{}{}", codecs.size(), codecs.empty() ? "" : codecs[0], link),
                             steps + Sets{"optimizer.device=device", fmt::format("stream.link.kind={}", link)});
      const Plan plan = make_plan(plan_request(run, {}));
      const TrainSummary s = train(run);
      EXPECT_EQ(s.state_hash, expected) << link << (codecs.empty() ? "" : codecs[0]);
      EXPECT_EQ(s.device_peak_bytes, plan.device.peak) << link;
    }
  }
}

TEST(DeviceOptimizer, SameStateForEveryClippingAndSchedule) {
  const Workplace w(AttentionKind::kDense);
  int n = 0;
  for (const Sets& clip : {Sets{"train.max_grad_norm=0.05"}, Sets{"train.clip=layer", "train.max_grad_norm=0.05"}, Sets{"train.clip=none"}}) {
    const Sets steps = clip + Sets{"train.max_train_steps=3", "train.gradient_accumulation_steps=2"};
    const std::string expected = train(w.run("host" + std::to_string(n), steps)).state_hash;
    for (const Sets& schedule : {Sets{"stream.async=false", "stream.link.kind=emulated"}, Sets{"stream.slots=3", "stream.link.kind=emulated"},
                                 Sets{"stream.stash=host", "stream.segment=2", "stream.link.kind=emulated"}, Sets{"stream.async=false"}})
      EXPECT_EQ(train(w.run("device" + std::to_string(n++), steps + schedule + Sets{"optimizer.device=device"}), 1).state_hash, expected)
          << clip[0] << " " << schedule[0];
  }
}

// Two sets of the largest module's state, weights and gradient: 14 bytes a parameter each, and the factor.
TEST(DeviceOptimizer, TakesDeviceMemoryWhichThePlanKnowsHowToSpare) {
  const Workplace w(AttentionKind::kDense);
  const Sets link{"stream.link.kind=emulated"};
  const Plan host = make_plan(plan_request(w.run("out", link), {}));
  PlanRequest r = plan_request(w.run("out", link + Sets{"optimizer.device=device"}), {});
  const Plan device = make_plan(r);
  int64_t largest = 0;
  const Network network = make_wan_network(w.config);
  const Module *embedding = network.embedding.get(), *layer = network.layers[0].get(), *head = network.head.get();
  for (const Module* m : {embedding, layer, head}) largest = std::max(largest, m->layout().elements);
  // Six allocations a set, each rounded up to 256 bytes.
  const int64_t taken = device.device.other + device.device.gradients - host.device.other - host.device.gradients;
  EXPECT_GE(taken, 2 * 14 * largest);
  EXPECT_LE(taken, 2 * (14 * largest + 6 * 256));
  r.run.stream.device_budget = (host.device.peak + device.device.peak) / 2;
  const Plan refused = make_plan(r);
  EXPECT_FALSE(refused.fits());
  EXPECT_NE(std::find(refused.remedies.begin(), refused.remedies.end(), "--set optimizer.device=cpu"), refused.remedies.end());
}

// Of the same run: what a checkpoint holds was made on the host, what follows on the device.
TEST(DeviceOptimizer, ARunGoesOnWithTheOtherOne) {
  const Workplace w(AttentionKind::kDense);
  const std::string expected = train(w.run("whole")).state_hash;
  train(w.run("parts", {"train.max_train_steps=2"}));
  train(w.run("parts", {"train.max_train_steps=4", "optimizer.device=device", "stream.link.kind=emulated", "output.save_every_n_steps=1"}));
  EXPECT_EQ(train(w.run("parts")).state_hash, expected);
}

// One update of every module while a stream lags behind; the state's hash.
std::string state_after_update(Device& device, Stream* slow, const Workplace& w) {
  const Network network = make_wan_network(w.config);
  HostStore store(network, {.training = true});
  ThreadPool pool(1);
  load_state(store, ModelDirectory::open(w.folder / "model"), pool, false);
  for (int m = 0; m < store.modules(); ++m)
    for (int64_t i = 0; i < store.module(m).module->layout().elements; ++i)
      static_cast<bf16*>(store.module(m).gradient)[i] = to_bf16(static_cast<float>(i % 17 + m) - 8);
  {
    DeviceOptimizer optimizer(device, store);
    if (slow) slow->enqueue("lag", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
    for (int m = 0; m < store.modules(); ++m) optimizer.update(m, {}, {});
    device.synchronize();
  }
  return state_hash(store, {}, pool);
}

TEST(DeviceOptimizer, EachOfItsEdgesIsNeeded) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "races on purpose, which is what ThreadSanitizer reports";
#endif
  using enum StreamKind;
  const Workplace w(AttentionKind::kDense);
  const auto device = make_cpu_device({.threads = 1, .link = LinkKind::kEmulated});
  const auto shared = make_cpu_device({.threads = 1});
  const std::string expected = state_after_update(*shared, nullptr, w);
  for (Stream* slow : {&device->upload(), &device->download()}) EXPECT_EQ(state_after_update(*device, slow, w), expected);
  EdgeDroppingDevice early(*device, {kDownload, kUpload}), over(*device, {kUpload, kDownload});
  EXPECT_NE(state_after_update(early, &device->upload(), w), expected) << "state returns before its update";
  EXPECT_NE(state_after_update(over, &device->download(), w), expected) << "state over that which is still returning";
}

}  // namespace
}  // namespace megaslide
