// Blocks with every kind of attention: finite differences, batches, threads, chunks, workspace.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/wan_names.h"
#include "model/wan_params.h"
#include "tests/model/network_driver.h"
#include "tests/model/small_config.h"
#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

const BatchShape kShape{.batch = 2, .frames = 3, .height = 4, .width = 5, .context_rows = 6};

struct Input {
  std::vector<float> latent, timesteps, text, target;
};

Input inputs(const ModelConfig& c, const BatchShape& s) {
  Input in{normals(s.rows() * 4 * c.in_channels, 11),
           {},
           normals(s.batch * s.context_rows * c.text_dim, 12),
           normals(s.rows() * 4 * c.out_channels, 13)};
  for (int64_t b = 0; b < s.batch; ++b) in.timesteps.push_back(731.25F - 300 * static_cast<float>(b));
  return in;
}

// Σ out ⊙ target: its gradient at out is target.
double score(NetworkDriver& net, const Input& in) {
  const std::vector<float> out = net.infer(in.latent, in.timesteps, in.text);
  double s = 0;
  for (size_t i = 0; i < out.size(); ++i) s += static_cast<double>(out[i]) * static_cast<double>(in.target[i]);
  return s;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); ++i) s += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return s;
}

struct Kind {
  AttentionKind attention;
  DsaMode mode;
  const char* name;
  DsaOffsets offsets = DsaOffsets::kNet;
  bool pooled = false;
  std::vector<DsaHeadWindow> windows = {};
};
DsaHeadWindow window_of(std::array<int64_t, 3> kernel, DsaMode mode, std::array<double, 3> reach, std::vector<int64_t> layers = {}) {
  return {.layers = std::move(layers), .heads = 1, .kernel = kernel, .reach = reach, .mode = mode, .groups = 1};
}
// Tall in time and wide in a frame; in the second layer the other way round, the wide one rigid.
const std::vector<DsaHeadWindow> kTwoWindows = {window_of({3, 1, 1}, DsaMode::kSlice, {0, 3, 3}), window_of({1, 3, 5}, DsaMode::kFull, {0, 2, 2}),
                                                window_of({2, 3, 3}, DsaMode::kRigid, {1, 2, 2}, {1}), window_of({3, 3, 1}, DsaMode::kFull, {1, 2, 2}, {1})};
const Kind kKinds[] = {{AttentionKind::kDense, DsaMode::kFull, "dense"},
                       {AttentionKind::kDenseMaterialised, DsaMode::kFull, "dense_materialised"},
                       {AttentionKind::kWindow, DsaMode::kFull, "window"},
                       {AttentionKind::kDsa, DsaMode::kFull, "dsa_full"},
                       {AttentionKind::kDsa, DsaMode::kSlice, "dsa_slice"},
                       {AttentionKind::kDsa, DsaMode::kRigid, "dsa_rigid"},
                       {AttentionKind::kDsa, DsaMode::kFull, "dsa_full_motion", DsaOffsets::kNetMotion},
                       {AttentionKind::kDsa, DsaMode::kSlice, "dsa_slice_motion", DsaOffsets::kNetMotion},
                       {AttentionKind::kDsa, DsaMode::kRigid, "dsa_rigid_pooled", DsaOffsets::kNet, true},
                       {AttentionKind::kDsa, DsaMode::kFull, "dsa_full_motion_pooled", DsaOffsets::kNetMotion, true},
                       {AttentionKind::kDsa, DsaMode::kFull, "dsa_windows", DsaOffsets::kNetMotion, true, kTwoWindows}};

class Block : public ::testing::TestWithParam<Kind> {
 protected:
  Block() { config.attention.dsa.windows = GetParam().windows; }
  ModelConfig config = small_config(GetParam().attention, GetParam().mode, GetParam().offsets, GetParam().pooled);
  bool dsa() const { return GetParam().attention == AttentionKind::kDsa; }
};

// Along a direction of each parameter the change of the score is that which the gradient says. Interpolation has a kink
// at integer positions: with offsets the step is smaller, and the few samples that cross one are in the tolerance.
TEST_P(Block, GradientsAreTheSlopes) {
  const Input in = inputs(config, kShape);
  NetworkDriver net(config, kShape, DType::kF32, 2, random_parameters(5));
  net.forward(in.latent, in.timesteps, in.text);
  net.backward(in.target);
  const double tolerance = dsa() ? 2e-2 : 4e-3;
  for (const std::string& name : net.names()) {
    const std::vector<float> gradient = net.gradient(name), value = net.parameter(name);
    // Along the gradient itself, so that the slope is not a small difference of many terms; plus a random part.
    std::vector<float> direction = normals(static_cast<int64_t>(value.size()), 21);
    const double length = std::sqrt(dot(gradient, gradient)), random = std::sqrt(dot(direction, direction));
    ASSERT_GT(length, 0) << name;
    const double step = (dsa() ? 1e-4 : 1e-3) * std::max(0.1, std::sqrt(dot(value, value)));
    for (size_t i = 0; i < direction.size(); ++i)
      direction[i] = static_cast<float>(gradient[i] / length + 0.5 * direction[i] / random);
    const auto moved = [&](double by) {
      std::vector<float> v = value;
      for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(v[i] + by * direction[i]);
      net.set_parameter(name, v);
      return score(net, in);
    };
    const double slope = (moved(step) - moved(-step)) / (2 * step);
    net.set_parameter(name, value);
    const double expected = dot(gradient, direction);
    // The score has some 1e3 terms of size 1 and fp32 noise of 1e-5 or so.
    EXPECT_NEAR(slope, expected, tolerance * std::abs(expected) + 2e-5 / step) << name;
  }
}

// `lo` and `hi`: shots of both samples, or empty.
void expect_two_batches_of_one(const ModelConfig& config, const std::vector<int32_t>& lo, const std::vector<int32_t>& hi) {
  const Input in = inputs(config, kShape);
  BatchShape one = kShape;
  one.batch = 1;
  const auto half = [](const auto& v, size_t i) {
    const ptrdiff_t n = static_cast<ptrdiff_t>(v.size() / 2), at = static_cast<ptrdiff_t>(i) * n;
    return std::decay_t<decltype(v)>(v.begin() + at, v.begin() + at + n);
  };
  NetworkDriver both(config, kShape, DType::kF32, 2, random_parameters(5)),
      single(config, one, DType::kF32, 2, random_parameters(5));
  both.set_shots(lo, hi);
  const std::vector<float> out = both.forward(in.latent, in.timesteps, in.text);
  both.backward(in.target);
  std::vector<std::vector<float>> sums;
  for (size_t i = 0; i < 2; ++i) {
    single.set_shots(half(lo, i), half(hi, i));
    const std::vector<float> part = single.forward(half(in.latent, i), half(in.timesteps, i), half(in.text, i));
    EXPECT_LT(relative_error(half(out, i), part), 1e-6);
    single.backward(half(in.target, i));
    EXPECT_LT(relative_error(half(both.dlatent, i), single.dlatent), 1e-5);
    EXPECT_LT(relative_error(half(both.dtext, i), single.dtext), 1e-5);
    for (size_t p = 0; p < single.names().size(); ++p) {
      const std::vector<float> g = single.gradient(single.names()[p]);
      if (i == 0)
        sums.push_back(g);
      else
        for (size_t c = 0; c < g.size(); ++c) sums[p][c] += g[c];
    }
  }
  for (size_t p = 0; p < sums.size(); ++p) {
    const std::string name = both.names()[p];
    // Biases of keys: sums that cancel, see below.
    const double tolerance = name.find("to_k.bias") != std::string::npos ? 1e-3 : 2e-5;
    EXPECT_LT(relative_error(both.gradient(name), sums[p]), tolerance) << name;
  }
}

TEST_P(Block, BatchOfTwoIsTwoBatchesOfOne) { expect_two_batches_of_one(config, {}, {}); }
// A cut in the first sample alone: no sample sees the other's.
TEST_P(Block, EachSampleHasItsShots) {
  const std::vector<int32_t> lo{0, 1, 1, 0, 0, 0}, hi{0, 2, 2, 2, 2, 2};
  expect_two_batches_of_one(config, lo, hi);
  const Input in = inputs(config, kShape);
  NetworkDriver net(config, kShape, DType::kF32, 2, random_parameters(5));
  const std::vector<float> whole = net.infer(in.latent, in.timesteps, in.text);
  net.set_shots(lo, hi);
  const std::vector<float> cut = net.infer(in.latent, in.timesteps, in.text);
  const auto middle = static_cast<std::ptrdiff_t>(whole.size() / 2);
  EXPECT_EQ(std::equal(whole.begin(), whole.begin() + middle, cut.begin()), !dsa()) << "deformable attention alone heeds them";
  EXPECT_TRUE(std::equal(whole.begin() + middle, whole.end(), cut.begin() + middle));
}

TEST_P(Block, ThreadsDoNotChangeBits) {
  const Input in = inputs(config, kShape);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    NetworkDriver a(config, kShape, dtype, 1, random_parameters(5)), b(config, kShape, dtype, 2, random_parameters(5));
    EXPECT_EQ(a.forward(in.latent, in.timesteps, in.text), b.forward(in.latent, in.timesteps, in.text));
    EXPECT_EQ(a.infer(in.latent, in.timesteps, in.text), b.forward(in.latent, in.timesteps, in.text));
    a.forward(in.latent, in.timesteps, in.text);
    a.backward(in.target);
    b.backward(in.target);
    EXPECT_EQ(a.dlatent, b.dlatent);
    for (const std::string& name : a.names()) EXPECT_EQ(a.gradient(name), b.gradient(name)) << name;
  }
}

TEST_P(Block, Bf16IsNearFp32) {
  const Input in = inputs(config, kShape);
  NetworkDriver narrow(config, kShape, DType::kBF16, 2, random_parameters(5)),
      wide(config, kShape, DType::kF32, 2, random_parameters(5));
  const std::vector<float> out = narrow.forward(in.latent, in.timesteps, in.text);
  EXPECT_LT(relative_error(out, wide.forward(in.latent, in.timesteps, in.text)), 0.03);
  narrow.backward(in.target);
  wide.backward(in.target);
  double difference = 0, total = 0;
  for (const std::string& name : wide.names()) {
    const std::vector<float> a = narrow.gradient(name), b = wide.gradient(name);
    difference += std::pow(relative_error(a, b), 2) * dot(b, b);
    total += dot(b, b);
  }
  EXPECT_LT(std::sqrt(difference / total), 0.05);
}

// `sim` measures what `cpu` uses, on addresses that nobody may touch.
TEST_P(Block, WorkspaceIsWhatADryRunSays) {
  const Input in = inputs(config, kShape);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    NetworkDriver net(config, kShape, dtype, 1, random_parameters(5));
    net.infer(in.latent, in.timesteps, in.text);
    net.forward(in.latent, in.timesteps, in.text);
    net.backward(in.target);
    DryStream dry;
    EXPECT_EQ(net.used_workspace(), NetworkDriver::dry_workspace(config, kShape, dtype, dry));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Block, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

// Zero offsets are neighbourhood attention; a window and kernel over the whole grid are dense attention.
TEST(BlockRelations, WholeWindowsAreDense) {
  const Input in = inputs(small_config(AttentionKind::kDense), kShape);
  NetworkDriver dense(small_config(AttentionKind::kDense), kShape, DType::kF32, 1, random_parameters(5));
  const std::vector<float> out = dense.forward(in.latent, in.timesteps, in.text);
  ModelConfig window = small_config(AttentionKind::kWindow);
  window.attention.window = {3, 4, 5};
  NetworkDriver windowed(window, kShape, DType::kF32, 1, random_parameters(5));
  EXPECT_LT(relative_error(windowed.forward(in.latent, in.timesteps, in.text), out), 2e-6);
  ModelConfig slide = small_config(AttentionKind::kDsa);
  slide.attention.dsa.kernel = {3, 4, 5};
  const ParameterSource random = random_parameters(5);
  NetworkDriver sliding(slide, kShape, DType::kF32, 1, [&](const std::string& name, const ParamSpec& spec) {
    if (name.find("offset_net.linear") != std::string::npos)
      return std::vector<float>(static_cast<size_t>(element_count(spec.shape)));
    return random(name, spec);
  });
  EXPECT_LT(relative_error(sliding.forward(in.latent, in.timesteps, in.text), out), 2e-6);
}

// What is zero at the start of a fine-tuning run changes nothing: to the bit.
TEST(BlockRelations, NewPartsStartAsNothing) {
  const Input in = inputs(small_config(AttentionKind::kDsa), kShape);
  const ParameterSource random = random_parameters(5);
  const ParameterSource start = [&](const std::string& name, const ParamSpec& spec) {
    if (name.find("motion_gain") != std::string::npos || name.find("pooled_gate") != std::string::npos)
      return std::vector<float>(static_cast<size_t>(element_count(spec.shape)));
    return random(name, spec);
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    NetworkDriver plain(small_config(AttentionKind::kDsa), kShape, dtype, 2, start);
    NetworkDriver both(small_config(AttentionKind::kDsa, DsaMode::kFull, DsaOffsets::kNetMotion, true), kShape, dtype, 2, start);
    EXPECT_EQ(both.forward(in.latent, in.timesteps, in.text), plain.forward(in.latent, in.timesteps, in.text));
    both.backward(in.target), plain.backward(in.target);
    EXPECT_EQ(both.dlatent, plain.dlatent);
    for (const std::string& name : plain.names()) EXPECT_EQ(both.gradient(name), plain.gradient(name)) << name;
    for (const char* name : {"blocks.0.attn1.offset_net.motion_gain", "blocks.1.attn1.pooled_gate"})
      EXPECT_GT(dot(both.gradient(name), both.gradient(name)), 0) << name;
  }
}

// A window by heads that says what all heads had anyway changes nothing, to the bit.
TEST(BlockRelations, EqualWindowsByHeadsAreOneForAll) {
  const ModelConfig one = small_config(AttentionKind::kDsa, DsaMode::kFull, DsaOffsets::kNetMotion);
  ModelConfig two = one;
  two.attention.dsa.windows = {{.heads = 1}, {}};
  const Input in = inputs(one, kShape);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    NetworkDriver a(one, kShape, dtype, 2, random_parameters(5)), b(two, kShape, dtype, 2, random_parameters(5));
    EXPECT_EQ(a.forward(in.latent, in.timesteps, in.text), b.forward(in.latent, in.timesteps, in.text));
    a.backward(in.target), b.backward(in.target);
    // The projection of the motion term gets the sum of both windows' gradients, in another order of adding.
    EXPECT_LT(relative_error(a.dlatent, b.dlatent), dtype == DType::kF32 ? 1e-6 : 2e-3);
    for (const std::string& name : a.names())
      EXPECT_LT(relative_error(a.gradient(name), b.gradient(name)), dtype == DType::kF32 ? 5e-5 : 5e-3) << name;
  }
}

// A known motion of zero leaves the net's offsets; any other moves the samples, and the gains feel it.
TEST(BlockRelations, KnownMotionIsAddedToTheOffsets) {
  const ModelConfig net = small_config(AttentionKind::kDsa), given = small_config(AttentionKind::kDsa, DsaMode::kFull, DsaOffsets::kNetGiven);
  const Input in = inputs(net, kShape);
  NetworkDriver plain(net, kShape, DType::kF32, 2, random_parameters(5)), moved(given, kShape, DType::kF32, 2, random_parameters(5));
  const int64_t n = kShape.rows() * kShape.frames * 2;
  moved.set_displacement(std::vector<float>(static_cast<size_t>(n)));
  const std::vector<float> still = plain.forward(in.latent, in.timesteps, in.text);
  EXPECT_EQ(moved.forward(in.latent, in.timesteps, in.text), still);
  moved.set_displacement(normals(n, 31));
  EXPECT_GT(relative_error(moved.forward(in.latent, in.timesteps, in.text), still), 1e-3);
  moved.backward(in.target);
  const std::string name = "blocks.1.attn1.offset_net.motion_gain";
  const std::vector<float> gradient = moved.gradient(name), value = moved.parameter(name);
  ASSERT_GT(dot(gradient, gradient), 0);
  const auto at = [&](double by) {
    std::vector<float> v = value;
    for (size_t i = 0; i < v.size(); ++i) v[i] += static_cast<float>(by) * gradient[i];
    moved.set_parameter(name, v);
    return score(moved, in);
  };
  const double expected = dot(gradient, gradient), step = 2e-4 / std::sqrt(expected);
  EXPECT_NEAR((at(step) - at(-step)) / (2 * step), expected, 0.03 * expected);
}

TEST(BlockRelations, MixedLayers) {
  ModelConfig c = small_config(AttentionKind::kDense);
  c.attention.per_layer = {AttentionKind::kDsa, AttentionKind::kWindow};
  EXPECT_EQ(wan_block_params(c, 0).size(), 33U);
  EXPECT_EQ(wan_block_params(c, 1).size(), 27U);
  const Input in = inputs(c, kShape);
  NetworkDriver net(c, kShape, DType::kF32, 2, random_parameters(5));
  net.forward(in.latent, in.timesteps, in.text);
  net.backward(in.target);
  EXPECT_EQ(net.names().size(), 12U + 33U + 27U + 3U);
}

// More rows than a chunk of the FFN: hidden activations are recomputed, the last chunk is ragged.
TEST(BlockRelations, FfnChunks) {
  ModelConfig c = small_config(AttentionKind::kWindow);
  c.layers = 1;
  BatchShape large{.batch = 2, .frames = 9, .height = 16, .width = 16, .context_rows = 3};  // 4608 rows
  BatchShape half = large;
  half.batch = 1;
  const Input in = inputs(c, large);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    NetworkDriver chunked(c, large, dtype, 2, random_parameters(5)), whole(c, half, dtype, 2, random_parameters(5));
    const std::vector<float> out = chunked.forward(in.latent, in.timesteps, in.text);
    EXPECT_EQ(chunked.infer(in.latent, in.timesteps, in.text), out);
    chunked.backward(in.target);
    std::vector<float> sum(chunked.gradient("blocks.0.ffn.net.0.proj.weight").size());
    for (size_t i = 0; i < 2; ++i) {
      const auto part = [&](const std::vector<float>& v) {
        const ptrdiff_t n = static_cast<ptrdiff_t>(v.size() / 2), at = static_cast<ptrdiff_t>(i) * n;
        return std::vector<float>(v.begin() + at, v.begin() + at + n);
      };
      const std::vector<float> alone = whole.forward(part(in.latent), part(in.timesteps), part(in.text));
      EXPECT_LT(relative_error(part(out), alone), dtype == DType::kF32 ? 1e-6 : 1e-3);
      whole.backward(part(in.target));
      const std::vector<float> g = whole.gradient("blocks.0.ffn.net.0.proj.weight");
      for (size_t c0 = 0; c0 < g.size(); ++c0) sum[c0] += g[c0];
    }
    EXPECT_LT(relative_error(chunked.gradient("blocks.0.ffn.net.0.proj.weight"), sum),
              dtype == DType::kF32 ? 1e-5 : 3e-3);
  }
}

TEST(WanNetwork, ParametersAreTheClosedSet) {
  ModelConfig c = small_config(AttentionKind::kDense);
  c.attention.per_layer = {AttentionKind::kDsa, AttentionKind::kDense};
  c.attention.dsa.offsets = DsaOffsets::kNetMotion;
  c.attention.dsa.pooled = true;
  std::vector<std::string> names;
  std::vector<Shape> shapes;
  int64_t count = 0;
  const Network n = make_wan_network(c);
  const auto add = [&](const Module& m, const std::string& prefix) {
    count += m.layout().parameters;
    for (const ParamSpec& p : m.params()) {
      names.push_back(prefix + p.name);
      shapes.push_back(p.shape);
    }
  };
  add(*n.embedding, "");
  add(*n.layers[0], "blocks.0.");
  add(*n.layers[1], "blocks.1.");
  add(*n.head, "");
  const std::vector<WanTensor> expected = wan_tensors(c);
  ASSERT_EQ(names.size(), expected.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(names[i], expected[i].name);
    EXPECT_EQ(shapes[i], expected[i].shape) << names[i];
  }
  EXPECT_EQ(count, parameter_count(c));
}

TEST(WanNetwork, LayoutStartsAreMultiplesOf64) {
  const ParamLayout layout(wan_block_params(small_config(AttentionKind::kDsa), 0));
  int64_t sum = 0;
  for (const ParamSpec& p : wan_block_params(small_config(AttentionKind::kDsa), 0)) sum += element_count(p.shape);
  for (const int64_t at : layout.offset) EXPECT_EQ(at % 64, 0);
  EXPECT_EQ(layout.elements % 64, 0);
  EXPECT_EQ(layout.parameters, sum);
}

TEST(WanNetwork, GridBeyondThePositionsIsAUsersError) {
  ModelConfig c = small_config(AttentionKind::kDense);
  c.rope_max_seq_len = 4;
  DryStream dry;
  try {
    NetworkDriver::dry_workspace(c, kShape, DType::kF32, dry);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(e.message().find("3x4x5"), std::string::npos);
    EXPECT_FALSE(e.remedy().empty());
  }
}

// The products of the cost entries are the model's: 2 flop a weight and row forward, 4 backward, and attention.
TEST(WanNetwork, GemmFlopsAreTheModels) {
  ModelConfig c = small_config(AttentionKind::kDense);
  DryStream dry;
  NetworkDriver::dry_workspace(c, kShape, DType::kF32, dry);
  const double rows = static_cast<double>(kShape.rows()),
               keys = static_cast<double>(kShape.batch * kShape.context_rows);
  const double d = static_cast<double>(c.dim), f = static_cast<double>(c.ffn_dim);
  const double block = 2 * rows * (6 * d * d + 2 * d * f) + 2 * keys * 2 * d * d;
  const double ends = 2 * rows * d * 4 * static_cast<double>(c.in_channels + c.out_channels) +
                      2 * keys * (static_cast<double>(c.text_dim) * d + d * d);
  // Two forwards (with and without saving) and a backward.
  EXPECT_DOUBLE_EQ(dry.flops[static_cast<size_t>(KernelClass::kGemm)],
                   4 * (static_cast<double>(c.layers) * block + ends));
}

TEST(Workspace, StackWithHighWater) {
  alignas(256) std::byte memory[2048];
  Workspace w(memory, 2048);
  float* a = w.take<float>(1);
  {
    const WorkspaceScope scope(w);
    EXPECT_EQ(static_cast<void*>(w.take<float>(65)), memory + 256);
    EXPECT_EQ(w.mark(), 256 + 512);
  }
  EXPECT_EQ(static_cast<void*>(a), memory);
  EXPECT_EQ(static_cast<void*>(w.take_bytes(1)), memory + 256);
  EXPECT_EQ(w.high_water(), 768);
  Workspace dry;
  const float* first = dry.take<float>(1000);
  EXPECT_EQ(dry.take<float>(1), first + 1024);
  EXPECT_EQ(dry.high_water(), 4096 + 256);
  EXPECT_DEATH(w.take_bytes(4096), "too small");
}

}  // namespace
}  // namespace megaslide
