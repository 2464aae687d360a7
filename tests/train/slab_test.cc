// Temporal slabs (spec engine.md §3): a clip that goes through the blocks in pieces is computed as a whole one is. The
// velocity has the same bits. A weight's gradient is summed over the slabs, so it differs by rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "model/wan.h"
#include "stream/pipeline.h"
#include "train/checkpoint.h"
#include "train/self_test.h"
#include "train/step.h"

namespace megaslide {
namespace {

ModelConfig small_model() {
  ModelConfig c = self_test_model();
  c.attention.per_layer.clear();
  return c;
}

ModelConfig windowed_model() {
  ModelConfig c = small_model();
  c.attention.kind = AttentionKind::kWindow;
  c.attention.window = {3, 2, 2};  // shifted in every other block
  return c;
}

// Heads of one block that reach differently far, blocks of both kinds.
ModelConfig mixed_model() {
  ModelConfig c = small_model();
  c.attention.per_layer = {AttentionKind::kDsa, AttentionKind::kWindow, AttentionKind::kDsa};
  c.attention.window = {2, 4, 4};
  c.attention.dsa.groups = 1;
  c.attention.dsa.windows = {{.heads = 2, .kernel = std::array<int64_t, 3>{1, 3, 3}, .reach = std::array<double, 3>{0, 1, 1}},
                             {.heads = 1, .kernel = std::array<int64_t, 3>{5, 1, 1}, .reach = std::array<double, 3>{1.5, 1, 1}}};
  return c;
}

std::vector<float> normals(int64_t n, uint64_t series, double deviation = 1) {
  std::vector<float> x(static_cast<size_t>(n));
  const Random random(5, RandomPurpose::kTest);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(deviation * random.normal(series, i));
  return x;
}

// Every parameter is random, so that offsets and gates are.
void fill(HostStore& store) {
  ThreadPool pool(1);
  for (int m = 0; m < store.modules(); ++m) {
    const ModuleState& s = store.module(m);
    for (size_t i = 0; i < s.module->params().size(); ++i) {
      const ParamSpec& spec = s.module->params()[i];
      const int64_t n = element_count(spec.shape), inputs = spec.shape.size() > 1 ? n / spec.shape[0] : 25;
      std::vector<float> p = normals(n, static_cast<uint64_t>(m) << 32 | i, 1 / std::sqrt(static_cast<double>(inputs)));
      if (spec.init == ParamInit::kOnes) for (float& x : p) x += 1;
      store.write_master(pool, m, s.module->layout().offset[i], n, p.data());
    }
  }
}

struct Clip {
  BatchShape shape;
  std::vector<float> latent, target, text, timesteps, loss_weights;
  std::vector<int32_t> shots;

  Clip(const ModelConfig& c, BatchShape grid, uint64_t series, bool with_shots, bool weighted) : shape(grid) {
    const int64_t cells = shape.rows() * 4;
    latent = normals(cells * c.in_channels, 10 * series);
    target = normals(cells * c.out_channels, 10 * series + 1);
    text = normals(shape.batch * shape.context_rows * c.text_dim, 10 * series + 2);
    for (int64_t i = 0; i < shape.timesteps(); ++i) timesteps.push_back(static_cast<float>(100 + 37 * i));
    for (int64_t i = 0; weighted && i < shape.batch * shape.frames; ++i) loss_weights.push_back(static_cast<float>(i % 3));
    if (!with_shots) return;
    // Each sample has a cut at its own frame.
    shots.resize(static_cast<size_t>(2 * shape.batch * shape.frames));
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t t = 0; t < shape.frames; ++t) {
        const int64_t cut = 3 + b, at = b * shape.frames + t;
        shots[static_cast<size_t>(at)] = static_cast<int32_t>(t < cut ? 0 : cut);
        shots[static_cast<size_t>(shape.batch * shape.frames + at)] = static_cast<int32_t>(t < cut ? cut - 1 : shape.frames - 1);
      }
  }
  MicroBatch view() const {
    return {shape, latent.data(), timesteps.data(), text.data(), target.data(), loss_weights.empty() ? nullptr : loss_weights.data(),
            shots.empty() ? nullptr : shots.data()};
  }
};

struct Result {
  std::vector<float> velocity;
  std::vector<double> losses;
  std::vector<std::vector<float>> gradients;  // a parameter
};

struct Settings {
  int64_t slab = 0;
  DType dtype = DType::kF32;
  CpuDeviceOptions device = {.threads = 2};
  StashOptions stash = {};
};

Result compute(const ModelConfig& config, const std::vector<Clip>& clips, const Settings& with) {
  const Network network = make_wan_network(config);
  HostStore store(network, {with.dtype, true, MasterCodec::kFp32, DType::kF32, false});
  fill(store);
  const auto device = make_cpu_device(with.device);
  PipelineOptions o;
  o.compute_dtype = with.dtype;
  o.training = true;
  o.max_microbatches = static_cast<int>(clips.size());
  o.slab_frames = with.slab;
  o.stash = with.stash;
  std::vector<MicroBatch> views;
  for (const Clip& c : clips) o.shapes.push_back(c.shape), views.push_back(c.view());
  Pipeline pipeline(*device, network, store, o);
  Result r;
  r.velocity.resize(clips[0].target.size());
  device->synchronize(pipeline.predict(views[0], r.velocity.data()));
  device->synchronize(pipeline.train(views));
  device->synchronize();
  r.losses.assign(pipeline.losses(), pipeline.losses() + clips.size());
  for (int m = 0; m < store.modules(); ++m) {
    const ModuleState& s = store.module(m);
    for (size_t i = 0; i < s.module->params().size(); ++i) {
      const float* g = static_cast<const float*>(s.gradient) + s.module->layout().offset[i];
      r.gradients.emplace_back(g, g + element_count(s.module->params()[i].shape));
    }
  }
  return r;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += static_cast<double>(a[i]) * a[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

struct Case {
  const char* name;
  ModelConfig config;
  BatchShape grid;
  bool shots = false, weighted = false;
};

std::vector<Case> cases() {
  ModelConfig slice = small_model(), rigid = small_model();
  slice.attention.dsa.mode = DsaMode::kSlice;
  rigid.attention.dsa.mode = DsaMode::kRigid;
  return {{"dsa", small_model(), {1, 7, 4, 6, 8}},
          {"dsa, slice, two samples, shots", slice, {2, 8, 3, 5, 8}, true},
          {"dsa, rigid, loss weights", rigid, {1, 9, 4, 4, 8}, false, true},
          {"window", windowed_model(), {2, 8, 4, 5, 8}},
          {"mixed, a timestep a frame, shots", mixed_model(), {2, 7, 4, 5, 8, 7}, true, true}};
}

TEST(Slabs, TheVelocityHasTheBitsOfTheWholeClips) {
  for (const Case& c : cases())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::vector<Clip> clips{Clip(c.config, c.grid, 1, c.shots, c.weighted)};
      const Result whole = compute(c.config, clips, {.dtype = dtype});
      for (const int64_t slab : {1, 2, 3, 5, 16})
        for (const LinkKind link : {LinkKind::kShared, LinkKind::kEmulated}) {
          const Result r = compute(c.config, clips, {.slab = slab, .dtype = dtype, .device = {.threads = 2, .link = link}});
          EXPECT_EQ(r.velocity, whole.velocity) << c.name << ", slabs of " << slab;
          // Of the same numbers, added in another order, in fp64.
          EXPECT_NEAR(r.losses[0], whole.losses[0], 1e-13 * std::abs(whole.losses[0])) << c.name << ", slabs of " << slab;
        }
    }
}

// Sums over rows are split where slabs end: in fp32 each of n additions rounds by 2^-24 of the sum, and cancels to about √n
// of it; with 500 rows and as many channels of a backward product that is 2e-6, and three blocks add theirs. Gradients of the
// offsets' parameters are small differences of large sums, an order of magnitude more.
TEST(Slabs, GradientsAreThoseOfTheWholeClips) {
  for (const Case& c : cases()) {
    const std::vector<Clip> clips{Clip(c.config, c.grid, 1, c.shots, c.weighted), Clip(c.config, c.grid, 2, c.shots, c.weighted)};
    const Result whole = compute(c.config, clips, {});
    for (const int64_t slab : {1, 2, 3, 5}) {
      const Result r = compute(c.config, clips, {.slab = slab});
      for (size_t i = 0; i < whole.gradients.size(); ++i)
        EXPECT_LT(distance(whole.gradients[i], r.gradients[i]), 1e-4) << c.name << ", slabs of " << slab << ", parameter " << i;
    }
  }
}

TEST(Slabs, SameBitsWhateverTheSchedule) {
  const Case c = cases().back();
  const std::vector<Clip> clips{Clip(c.config, c.grid, 1, true, true), Clip(c.config, c.grid, 2, true, true)};
  const auto gradients = [&](const Settings& with) { return compute(c.config, clips, with).gradients; };
  const Settings plain{.slab = 2, .dtype = DType::kBF16, .device = {.threads = 1, .async = false}};
  const auto expected = gradients(plain);
  for (const LinkKind link : {LinkKind::kShared, LinkKind::kEmulated})
    for (const int segment : {1, 2}) {
      Settings with = plain;
      with.stash.segment = segment;
      with.device = {.threads = 2, .link = link};
      EXPECT_EQ(gradients(with), expected) << segment;
      with.device.jitter = 2e-4;
      EXPECT_EQ(gradients(with), expected) << segment;
    }
}

TEST(Slabs, DeviceMemoryDoesNotDependOnTheLengthOfTheClip) {
  for (const ModelConfig& config : {small_model(), windowed_model()}) {
    const Network network = make_wan_network(config);
    HostStore store(network, {DType::kBF16, true, MasterCodec::kSplit, DType::kBF16, true});
    const auto peak = [&](int64_t frames) {
      const auto sim = make_sim_device({.link = LinkKind::kEmulated});
      PipelineOptions o;
      o.training = true;
      o.shapes = {{1, frames, 8, 8, 8}};
      o.slab_frames = 4;
      const Pipeline pipeline(*sim, network, store, o);
      return std::pair{sim->memory().peak, pipeline.host_stash_bytes()};
    };
    const auto little = peak(5), most = peak(1000);
    EXPECT_GT(most.second, 100 * little.second);
    // The loss's weights, one number a frame.
    EXPECT_NEAR(static_cast<double>(most.first), static_cast<double>(little.first), 4 * 1000 + 256);
  }
}

TEST(Slabs, BlocksThatSeeWholeClipsAreNamed) {
  ModelConfig dense = small_model(), pooled = small_model();
  dense.attention.per_layer = {AttentionKind::kDsa, AttentionKind::kDense, AttentionKind::kDsa};
  pooled.attention.dsa.pooled = true;
  for (const auto& [config, block] : {std::pair{dense, "block 1"}, {pooled, "block 0"}}) {
    const std::vector<Clip> clips{Clip(config, {1, 4, 3, 3, 8}, 1, false, false)};
    try {
      compute(config, clips, {.slab = 2});
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(block), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace megaslide
