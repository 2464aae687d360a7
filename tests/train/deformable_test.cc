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

// Where a model takes the motion from the data, training and validation read it, the plan holds it, and what is missing or
// wrong is said before anything starts.
TEST(Deformable, KnownMotionOfTheClips) {
  const Workplace w(AttentionKind::kDsa);
  ModelConfig c = w.config;
  c.attention.dsa.offsets = DsaOffsets::kNetGiven;
  ThreadPool pool(2);
  init_model_directory(w.folder / "given", c, 5, DType::kF32, false, pool);
  const auto run = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(), {"model.path=" + (w.folder / "given"), "train.max_train_steps=8", "data.validation_fraction=0.3", "train.validate_every_n_steps=4", "optimizer.learning_rate=0.01"});
    return w.run(output, more);
  };
  const std::vector<std::string> known{"data.displacement=" + (w.folder / "motion")};
  const auto write = [&](int clip, const Shape& shape, float value) {
    HostTensor t(DType::kF32, shape);
    std::fill(t.f32(), t.f32() + t.elements(), value);
    write_safetensors(w.folder / fmt::format("motion/clip{}.safetensors", clip), {{"displacement", t.view()}});
  };
  const auto fails = [&](const RunConfig& r, const std::string& part) { EXPECT_NE(testing::error_of([&] { train(r); }).find(part), std::string::npos) << testing::error_of([&] { train(r); }); };
  fails(run("none", {}), "data.displacement names no folder");
  fails(run("absent", known), "has no known motion");
  std::filesystem::create_directories(w.folder / "motion");
  for (int clip = 0; clip < 5; ++clip) write(clip, clip < 3 ? Shape{3, 4, 4, 3, 2} : Shape{2, 4, 2, 2, 2}, 0.7f);
  write(1, {3, 4, 4, 2, 2}, 0);
  fails(run("shape", known), "displacement is [3, 4, 4, 2, 2], the clip's tokens are [3, 4, 4, 3, 2]");
  write(1, {3, 4, 4, 3, 2}, std::numeric_limits<float>::infinity());
  fails(run("infinite", known), "not finite");
  write(1, {3, 4, 4, 3, 2}, 0.7f);
  fails(w.run("unused", known), "does not take its offsets from a known motion");

  const TrainSummary s = train(run("out", known));
  EXPECT_EQ(make_plan(plan_request(run("out", known), MachineConfig())).device.peak, s.device_peak_bytes);
  const ModelDirectory after = ModelDirectory::open(s.checkpoint);
  for (const float x : values(after, 1, "blocks.1.attn1.offset_net.motion_gain")) EXPECT_TRUE(x != 0 && x != 1) << x;
  for (const float x : values(after, 1, "blocks.1.attn1.offset_net.motion_beta")) EXPECT_EQ(x, 1);  // takes no part
  // Another motion, another loss.
  const auto loss_after = [&](const std::string& name) {
    return first_loss(w.run(name, {known[0], "model.path=" + s.checkpoint, "train.max_train_steps=1"}));
  };
  const double one = loss_after("one");
  EXPECT_EQ(loss_after("again"), one);
  // A probe reads it from the batch.
  const auto probed = [&](std::optional<float> motion) {
    HostTensor latent(DType::kF32, {1, 16, 3, 8, 8}), times(DType::kF32, {1}), text(DType::kF32, {1, 3, 32}), displacement(DType::kF32, {1, 3, 4, 4, 3, 2});
    fill_normal({latent.f32(), static_cast<size_t>(latent.elements())}, 6, RandomPurpose::kTest, 1);
    times.f32()[0] = 500;
    if (motion) std::fill(displacement.f32(), displacement.f32() + displacement.elements(), *motion);
    std::vector<std::pair<std::string, TensorView>> tensors{{"latent", latent.view()}, {"timesteps", times.view()}, {"text", text.view()}};
    if (motion) tensors.emplace_back("displacement", displacement.view());
    write_safetensors(w.folder / "probe.safetensors", tensors);
    probe(after, w.folder / "probe.safetensors", w.folder / "probed.safetensors", DType::kF32, 2);
    const HostTensor out = read_f32(SafetensorsFile::open(w.folder / "probed.safetensors"), "out");
    return std::vector<float>(out.f32(), out.f32() + out.elements());
  };
  EXPECT_EQ(probed(0.5f), probed(0.5f));
  EXPECT_NE(probed(0.5f), probed(-0.5f));
  EXPECT_NE(testing::error_of([&] { probed(std::nullopt); }).find("displacement"), std::string::npos);
  for (int clip = 0; clip < 5; ++clip) write(clip, clip < 3 ? Shape{3, 4, 4, 3, 2} : Shape{2, 4, 2, 2, 2}, -0.4f);
  EXPECT_NE(loss_after("other"), one);
}

}  // namespace
}  // namespace megaslide
