// The motion term and the pooled branch in training: added to a model that was made without them, and in the plan.
#include <gtest/gtest.h>

#include <algorithm>

#include "io/shard.h"
#include "plan/planner.h"
#include "train/probe.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::train;
using testing::Workplace;

std::vector<float> values(const ModelDirectory& model, int64_t layer, const std::string& name) {
  const HostTensor t = HostTensor::f32_from(model.layer(layer).view(name));
  return {t.f32(), t.f32() + t.elements()};
}

double first_loss(const RunConfig& run) {
  TrainerOptions o;
  o.threads = 2;
  double loss = -1;
  run_training(run, o, [&](const StepMetrics& m) { loss = loss < 0 ? m.loss : loss; });
  return loss;
}

// Made without; then with both, which start as nothing, learn, and are the checkpoint's from then on.
TEST(Deformable, NewPartsOfAModelStartAsNothingAndLearn) {
  for (const AttentionKind made : {AttentionKind::kDsa, AttentionKind::kDense}) {
    const Workplace w(AttentionKind::kDsa);
    ModelConfig c = w.config;
    c.attention.kind = made;
    c.attention.dsa.offsets = DsaOffsets::kNet;
    ThreadPool pool(2);
    init_model_directory(w.folder / "start", c, 5, DType::kF32, false, pool);
    // A few steps away from the start, where the head is zero and attention of no account.
    const TrainSummary before = train(w.run("before", {"model.path=" + (w.folder / "start"), "train.max_train_steps=4"}));
    const auto run = [&](const std::string& output, std::vector<std::string> more) {
      more.insert(more.end(), {"model.path=" + before.checkpoint, "model.attention=dsa", "model.compute_dtype=fp32", "train.max_train_steps=4"});
      return w.run(output, more);
    };
    const double without = first_loss(run("without", {"model.dsa.offsets=net"}));
    EXPECT_EQ(first_loss(run("with", {"model.dsa.offsets=net+motion", "model.dsa.pooled=true"})), without);
    const ModelDirectory after = ModelDirectory::open(w.folder / "with/checkpoints/step-00000004");
    EXPECT_TRUE(after.config().attention.dsa.motion());
    EXPECT_TRUE(after.config().attention.dsa.pooled);
    for (const char* name : {"blocks.1.attn1.offset_net.motion_gain", "blocks.1.attn1.pooled_gate"})
      for (const float x : values(after, 1, name)) EXPECT_NE(x, 0) << name;
    EXPECT_NE(values(after, 1, "blocks.1.attn1.offset_net.motion_beta")[0], 1);
    EXPECT_NE(first_loss(run("in force", {"model.dsa.offsets=net+motion", "model.dsa.motion_share=1"})), without);
  }
}

void expect_probe_sees_every_parameter(const ModelDirectory& model, const std::string& batch, const std::string& out) {
  HostTensor latent(DType::kF32, {2, 16, 3, 8, 8}), target(DType::kF32, latent.shape()), times(DType::kF32, {2}), text(DType::kF32, {2, 3, 32});
  uint64_t series = 0;
  for (HostTensor* t : {&latent, &target, &text}) fill_normal({t->f32(), static_cast<size_t>(t->elements())}, 6, RandomPurpose::kTest, ++series);
  times.f32()[0] = 300, times.f32()[1] = 800;
  write_safetensors(batch, {{"latent", latent.view()}, {"target", target.view()}, {"timesteps", times.view()}, {"text", text.view()}});
  EXPECT_GT(probe(model, batch, out, DType::kF32, 2), 0);
  const auto result = SafetensorsFile::open(out);
  for (const WanTensor& t : wan_tensors(model.config())) {
    ASSERT_NE(result.find("grad." + t.name), nullptr) << t.name;
    const HostTensor gradient = read_f32(result, "grad." + t.name);
    EXPECT_TRUE(std::any_of(gradient.f32(), gradient.f32() + gradient.elements(), [](float x) { return x != 0; })) << t.name;
  }
}

TEST(Deformable, LossFallsAndARunIsThePlansToTheByte) {
  const Workplace w(AttentionKind::kDsa);
  for (const char* mode : {"full", "slice"}) {
    ModelConfig c = w.config;
    c.attention.dsa.mode = mode == std::string("slice") ? DsaMode::kSlice : DsaMode::kFull;
    c.attention.dsa.pooled = true;
    ThreadPool pool(2);
    init_model_directory(w.folder / mode, c, 5, DType::kF32, false, pool);
    const auto run = w.run(fmt::format("out-{}", mode), {"model.path=" + (w.folder / mode), "train.max_train_steps=60", "train.timestep_sampling=uniform"});
    MachineConfig machine;
    const Plan plan = make_plan(plan_request(run, machine));
    const TrainSummary s = train(run);
    EXPECT_EQ(plan.device.peak, s.device_peak_bytes) << mode;
    EXPECT_LT(s.last_loss, 0.9 * s.first_loss) << mode;
    expect_probe_sees_every_parameter(ModelDirectory::open(s.checkpoint), w.folder / "batch.safetensors", w.folder / "probe.safetensors");
  }
}

}  // namespace
}  // namespace megaslide
