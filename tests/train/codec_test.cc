// Runs whose state is kept in fewer bits: they resume bit for bit, take what the plan says, and learn what fp32 state learns.
#include <gtest/gtest.h>

#include <cmath>

#include "io/parameter_reader.h"
#include "io/shard.h"
#include "plan/planner.h"
#include "train/checkpoint.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::error_of;
using testing::train;
using testing::Workplace;

struct Codecs {
  const char *masters, *moments;
  double bytes;  // of masters and moments, a parameter
};
constexpr Codecs kCodecs[] = {{"split", "fp32", 10}, {"split", "bf16", 6},   {"split", "int8", 4},
                              {"fp32", "int8", 6},   {"bf16-sr", "bf16", 4}, {"bf16-sr", "int8", 2}};

std::vector<std::string> sets_of(const Codecs& c, std::vector<std::string> more = {}) {
  more.push_back(fmt::format("optimizer.masters={}", c.masters));
  more.push_back(fmt::format("optimizer.moments={}", c.moments));
  return more;
}

TEST(StateCodecs, ResumedEqualsUninterruptedAndThePlanKnowsTheBytes) {
  const Workplace w;
  for (const Codecs& c : kCodecs) {
    const std::string name = fmt::format("{}-{}", c.masters, c.moments);
    const auto run = w.run("whole-" + name, sets_of(c));
    const Plan plan = make_plan(plan_request(run, {}));
    const auto n = static_cast<double>(plan.parameters);
    // Slabs begin on pages and parameters on multiples of 64 elements; scales are 1/32 byte a parameter.
    const auto state = static_cast<double>(plan.host.masters + plan.host.moments);
    EXPECT_GE(state, c.bytes * n) << name;
    EXPECT_LE(state, (c.bytes + 0.4) * n) << name;
    const TrainSummary whole = train(run);
    train(w.run("parts-" + name, sets_of(c, {"train.max_train_steps=2"})), 1);
    const TrainSummary parts = train(w.run("parts-" + name, sets_of(c)));
    EXPECT_EQ(parts.resumed_from, 2) << name;
    EXPECT_EQ(parts.state_hash, whole.state_hash) << name;
    const ModelDirectory checkpoint = ModelDirectory::open(whole.checkpoint);
    EXPECT_EQ(hash_state(checkpoint), whole.state_hash) << name << ": shard-weights --hash sees the same state";
    int64_t stored = 0;
    for (const auto& f : checkpoint.manifest().files) stored += f.bytes;
    EXPECT_NEAR(static_cast<double>(plan.disk.checkpoint), static_cast<double>(stored), 96 * 1024) << name << ": headers apart";
  }
}

TEST(StateCodecs, TheSameWhateverTheSchedule) {
  const Workplace w;
  const Codecs least{"bf16-sr", "int8", 2};
  const std::string expected = train(w.run("a", sets_of(least)), 1).state_hash;
  EXPECT_EQ(train(w.run("b", sets_of(least, {"stream.async=false", "stream.link.kind=emulated"}))).state_hash, expected);
  EXPECT_EQ(train(w.run("c", sets_of(least, {"stream.stash=host", "stream.link.kind=emulated"}))).state_hash, expected);
  EXPECT_NE(train(w.run("d", sets_of(least, {"train.seed=5"}))).state_hash, expected);
}

// The mean loss of the last steps of a run that learns, against that of fp32 state with the same data and noise.
TEST(StateCodecs, LearnWhatFp32StateLearns) {
  const Workplace w(AttentionKind::kDense);
  const auto last_loss = [&](const std::string& name, const std::vector<std::string>& codecs) {
    std::vector<std::string> sets{"train.max_train_steps=150", "optimizer.learning_rate=0.003", "train.timestep_sampling=uniform"};
    sets.insert(sets.end(), codecs.begin(), codecs.end());
    double sum = 0;
    TrainerOptions o;
    o.threads = 2;
    run_training(w.run(name, sets), o, [&](const StepMetrics& m) { sum += m.step > 110 ? m.loss / 40 : 0; });
    return sum;
  };
  const double start = [&] {
    double first = 0;
    run_training(w.run("first", {"train.max_train_steps=1"}), {}, [&](const StepMetrics& m) { first = m.loss; });
    return first;
  }();
  const double exact = last_loss("exact", {});
  ASSERT_LT(exact, 0.5 * start);
  for (const Codecs& c : kCodecs) {
    const double got = last_loss(fmt::format("{}-{}", c.masters, c.moments), sets_of(c));
    // Stochastic rounding of bf16 masters is noise of half an ulp, 2^-9 of a weight, each step; int8 levels are 3% of a moment.
    EXPECT_NEAR(got, exact, 0.05 * exact) << c.masters << " " << c.moments;
    std::printf("%-8s %-6s last loss %.5f (fp32 state %.5f, first step %.4f)\n", c.masters, c.moments, got, exact, start);
  }
}

TEST(StateCodecs, AChangeOfCodecIsAChangeOfTheRun) {
  const Workplace w;
  train(w.run("out", {"train.max_train_steps=2"}));
  const std::string text = error_of([&] { train(w.run("out", {"optimizer.moments=int8"})); });
  EXPECT_NE(text.find("optimizer.moments"), std::string::npos) << text;
  // Allowed by name, levels are made of the moments that were kept before.
  TrainerOptions o;
  o.threads = 2;
  o.allowed_changes = {"optimizer.moments"};
  EXPECT_EQ(run_training(w.run("out", {"optimizer.moments=int8"}), o).resumed_from, 2);
}

TEST(StateCodecs, LevelsWithoutTheirScalesAreRefused) {
  const Workplace w;
  const TrainSummary s = train(w.run("out", {"optimizer.moments=int8", "train.max_train_steps=1"}));
  const SafetensorsFile file = ModelDirectory::open(s.checkpoint).part(0);
  std::vector<std::pair<std::string, TensorView>> without;
  std::string dropped;
  for (const TensorInfo& t : file.tensors())
    if (dropped.empty() && t.name.ends_with(".exp_avg_scale")) dropped = t.name;
    else without.emplace_back(t.name, file.view(t));
  ASSERT_FALSE(dropped.empty());
  const std::string path = w.folder / "without.safetensors";
  write_safetensors(path, without);
  const std::string parameter = dropped.substr(0, dropped.size() - std::string(".exp_avg_scale").size());
  const std::string text = error_of([&] { ParameterReader(SafetensorsFile::open(path), parameter); });
  EXPECT_NE(text.find(dropped + " is missing"), std::string::npos) << text;
}

}  // namespace
}  // namespace megaslide
