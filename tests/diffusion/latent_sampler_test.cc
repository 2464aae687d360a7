// The sampling loop over a streamed network whose velocity is known: v = a·x + mean(text).
#include "diffusion/latent_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "diffusion/flow_matching.h"
#include "kernels/kernel.h"

namespace megaslide {
namespace {

constexpr float kSlope = 0.5f;
constexpr int64_t kChannels = 2, kWidth = kChannels * 4, kTextWidth = 3, kRows = 2;

class Bare {
 public:
  std::vector<ParamSpec> specs{{"weight", {1}}};
  ParamLayout offsets{specs};
};

class FakeEmbedding final : public Embedding, Bare {
 public:
  const std::vector<ParamSpec>& params() const override { return specs; }
  const ParamLayout& layout() const override { return offsets; }
  int64_t packed_bytes(DType, bool) const override { return 0; }
  void pack(Stream&, DType, bool, const void*, void*) const override {}
  int64_t saved_bytes(const BatchShape&, DType) const override { return 64; }
  void tokens_forward(const LayerCall& call, const float* latent, float* tokens) const override {
    const int64_t n = call.shape.rows() * kWidth;
    call.stream.enqueue("tokens", {}, [=] { std::copy(latent, latent + n, tokens); });
  }
  void conditioning_forward(const LayerCall& call, const float* timesteps, const float* text, float*, float* time, float*,
                            void*) const override {
    const BatchShape s = call.shape;
    call.stream.enqueue("conditioning", {}, [=] {
      for (int64_t b = 0; b < s.batch; ++b) {
        EXPECT_EQ(timesteps[b], timesteps[0]);
        const float* row = text + b * kRows * kTextWidth;
        for (int64_t i = 0; i < kWidth; ++i) time[b * kWidth + i] = std::accumulate(row, row + kRows * kTextWidth, 0.f) / (kRows * kTextWidth);
      }
    });
  }
  void conditioning_backward(const LayerCall&, const float*, const void*, float*, float*, float*, float*, float*) const override {}
  void tokens_backward(const LayerCall&, const float*, const float*, float*, float*) const override {}
};

class FakeLayer final : public Layer, Bare {
 public:
  const std::vector<ParamSpec>& params() const override { return specs; }
  const ParamLayout& layout() const override { return offsets; }
  int64_t packed_bytes(DType, bool) const override { return 0; }
  void pack(Stream&, DType, bool, const void*, void*) const override {}
  int64_t saved_bytes(const BatchShape&, DType) const override { return 64; }
  void forward(const LayerCall& call, const Conditioning&, const float* x, float* y, void*) const override {
    const int64_t n = call.shape.rows() * kWidth;
    call.stream.enqueue("layer", {}, [=] { std::copy(x, x + n, y); });
  }
  std::optional<FrameRange> sees(int64_t, FrameRange own) const override { return own; }
  void backward(const LayerCall&, const Conditioning&, const float*, const void*, const float*, float*, float*) const override {}
};

class FakeHead final : public Head, Bare {
 public:
  const std::vector<ParamSpec>& params() const override { return specs; }
  const ParamLayout& layout() const override { return offsets; }
  int64_t packed_bytes(DType, bool) const override { return 0; }
  void pack(Stream&, DType, bool, const void*, void*) const override {}
  int64_t saved_bytes(const BatchShape&, DType) const override { return 64; }
  void forward(const LayerCall& call, const float* tokens, const float* time, float* out, void*) const override {
    const BatchShape s = call.shape;
    call.stream.enqueue("head", {}, [=] {
      for (int64_t i = 0; i < s.rows() * kWidth; ++i) out[i] = kSlope * tokens[i] + time[i / (s.tokens() * kWidth) * kWidth];
    });
  }
  void backward(const LayerCall&, const float*, const float*, const void*, const float*, float*, float*, float*) const override {}
};

struct Rig {
  Network network;
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::unique_ptr<HostStore> store;
  Rig() {
    network.embedding = std::make_unique<FakeEmbedding>();
    network.layers.push_back(std::make_unique<FakeLayer>());
    network.head = std::make_unique<FakeHead>();
    network.width = kWidth;
    network.text_width = kTextWidth;
    network.in_channels = network.out_channels = kChannels;
    store = std::make_unique<HostStore>(network, HostStoreOptions{.compute_dtype = DType::kF32});
  }
  std::vector<float> run(std::vector<float> latent, float text, float negative, const SamplingOptions& options, const StopToken& stop = {}) {
    const BatchShape shape = sampling_shape(network, 1, 4, 4, kRows, options);
    Pipeline pipeline(*device, network, *store, {.compute_dtype = DType::kF32, .shapes = {shape}});
    const std::vector<float> rows(kRows * kTextWidth, text), negative_rows(kRows * kTextWidth, negative);
    sample_latent(*device, [&](int) -> Pipeline& { return pipeline; }, {shape, latent, rows, negative_rows}, options, stop);
    return latent;
  }
};

std::vector<float> noise() {
  std::vector<float> x(kChannels * 16);
  fill_normal(x, 1, RandomPurpose::kTest, 0);
  return x;
}

// dx/dσ = a·x + c from σ = 1 to 0: x(0) = (x(1) + c/a)·exp(−a) − c/a.
double exact(double x, double c) { return (x + c / kSlope) * std::exp(-kSlope) - c / kSlope; }

TEST(LatentSampler, FollowsTheFieldWithoutGuidance) {
  Rig rig;
  const SamplingOptions options{.steps = 200, .flow_shift = 1, .guidance_scale = 1, .solver = Solver::kEuler, .grid = SigmaGrid::kClean};
  const auto start = noise(), end = rig.run(start, 0.25f, 99, options);
  // Euler with 200 steps of h: global error ≈ h/2·max|x''| = 0.0025·a·|a·x + c| < 0.005 for |x| < 4.
  for (size_t i = 0; i < start.size(); ++i) EXPECT_NEAR(end[i], exact(start[i], 0.25), 5e-3);
}

TEST(LatentSampler, GuidanceExtrapolatesFromTheNegativePrompt) {
  Rig rig;
  const SamplingOptions options{.steps = 200, .flow_shift = 1, .guidance_scale = 3, .solver = Solver::kEuler, .grid = SigmaGrid::kClean};
  const auto start = noise(), end = rig.run(start, 0.25f, -0.5f, options);
  // c = u + 3·(v − u) with u = −0.5, v = 0.25; bound as above with |c| = 1.75.
  for (size_t i = 0; i < start.size(); ++i) EXPECT_NEAR(end[i], exact(start[i], -0.5 + 3 * 0.75), 1e-2);
}

TEST(LatentSampler, UniPCNeedsFarFewerSteps) {
  Rig rig;
  const SamplingOptions options{.steps = 20, .flow_shift = 1, .guidance_scale = 1, .grid = SigmaGrid::kWan};
  const auto start = noise(), end = rig.run(start, 0.25f, 0, options);
  // The grid begins at 0.999: 0.001 of a slope below 2.5 is left out; the solver's own error is smaller.
  for (size_t i = 0; i < start.size(); ++i) EXPECT_NEAR(end[i], exact(start[i], 0.25), 4e-3);
}

TEST(LatentSampler, NonFiniteLatentsAreAnError) {
  Rig rig;
  EXPECT_THROW(rig.run(noise(), NAN, 0, {.steps = 2, .guidance_scale = 1}), Error);
}

TEST(LatentSampler, StopsBetweenSteps) {
  Rig rig;
  const std::atomic<int> flag{15};
  EXPECT_THROW(rig.run(noise(), 0, 0, {.steps = 2, .guidance_scale = 1}, StopToken(&flag)), Stopped);
}

}  // namespace
}  // namespace megaslide
