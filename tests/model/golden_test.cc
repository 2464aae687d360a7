// The transformer against diffusers: outputs, every gradient, intermediate tensors (tests/data/dit/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/safetensors.h"
#include "tests/model/network_driver.h"
#include "tests/support/library_noise.h"

namespace megaslide {
namespace {

using namespace testing_support;

std::vector<float> values(const TensorView& v) {
  std::vector<float> r(static_cast<size_t>(v.elements()));
  convert_to_f32(r.data(), v.data, v.dtype, v.elements());
  return r;
}

double norm(const std::vector<float>& v) {
  double s = 0;
  for (const float x : v) s += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(s);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  std::vector<float> d(a.size());
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return norm(d);
}

struct Golden {
  explicit Golden(const std::string& name)
      : folder(std::string(MEGASLIDE_TEST_DATA) + "/dit/" + name),
        io(SafetensorsFile::open(folder + "/io.safetensors")),
        weights(SafetensorsSource::open(folder)),
        meta(read_json(folder + "/meta.json")) {
    const nlohmann::json c = read_json(folder + "/config.json");
    config.heads = c["num_attention_heads"];
    config.dim = config.heads * static_cast<int64_t>(c["attention_head_dim"]);
    config.ffn_dim = c["ffn_dim"];
    config.layers = c["num_layers"];
    config.text_dim = c["text_dim"];
    config.rope_max_seq_len = c["rope_max_seq_len"];
    const Shape s = io.find("latent")->shape;
    shape = {.batch = s[0],
             .frames = s[2],
             .height = s[3] / 2,
             .width = s[4] / 2,
             .context_rows = io.find("text")->shape[1]};
  }
  NetworkDriver network(DType dtype, int threads = 2) const {
    return NetworkDriver(config, shape, dtype, threads, [this](const std::string& tensor, const ParamSpec& spec) {
      EXPECT_EQ(weights.view(tensor).shape, spec.shape) << tensor;
      return values(weights.view(tensor));
    });
  }
  std::vector<float> tensor(const std::string& name) const { return values(io.view(name)); }
  double noise(const std::string& name) const { return meta["noise_fp32_angles64"]["tensors"][name]; }
  double gradient_noise(const std::string& name) const { return meta["noise_fp32_angles64"]["grads"][name]; }

  std::string folder;
  SafetensorsFile io;
  SafetensorsSource weights;
  nlohmann::json meta;
  ModelConfig config;
  BatchShape shape;
};

// ∂ mean((out − target)²) / ∂ out
std::vector<float> loss_gradient(const std::vector<float>& out, const std::vector<float>& target, double* loss) {
  std::vector<float> d(out.size());
  *loss = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double e = static_cast<double>(out[i]) - static_cast<double>(target[i]);
    *loss += e * e / static_cast<double>(out.size());
    d[i] = static_cast<float>(2 * e / static_cast<double>(out.size()));
  }
  return d;
}

class Dit : public ::testing::TestWithParam<const char*> {};

TEST_P(Dit, Fp32OutputsAndIntermediates) {
  const Golden g(GetParam());
  NetworkDriver net = g.network(DType::kF32);
  const std::vector<float> out = net.forward(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text"));
  const auto expect_near = [&](const std::string& name, const std::vector<float>& got) {
    if (g.io.find(name) == nullptr) return;
    const std::vector<float> want = g.tensor(name);
    EXPECT_LT(distance(got, want) / norm(want), kFactor * g.noise(name) + kFloor) << name;
  };
  expect_near("temb", net.time);
  expect_near("timestep_proj", net.modulation);
  expect_near("context", net.context);
  expect_near("tokens", net.states()[0]);
  expect_near("block.0", net.states()[1]);
  expect_near("block.1", net.states()[2]);
  expect_near("out", out);
  EXPECT_EQ(net.infer(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text")), out) << "without saving";
}

// A timestep for each latent frame: the reference gives one to each token.
std::vector<float> a_frame(const std::vector<float>& per_token, const BatchShape& s) {
  std::vector<float> r;
  const auto frame = static_cast<size_t>(s.height * s.width);
  for (size_t i = 0; i < per_token.size(); i += frame) r.push_back(per_token[i]);
  return r;
}

TEST_P(Dit, ATimestepAFrame) {
  Golden g(GetParam());
  g.shape.times = g.shape.frames;
  NetworkDriver net = g.network(DType::kF32);
  const std::vector<float> times = a_frame(g.tensor("timesteps_per_token"), g.shape), want = g.tensor("out_per_token");
  const std::vector<float> out = net.forward(g.tensor("latent"), times, g.tensor("text"));
  EXPECT_LT(distance(out, want) / norm(want), kFactor * g.meta["noise_fp32_angles64"]["out_per_token"].get<double>() + kFloor);
  EXPECT_EQ(net.infer(g.tensor("latent"), times, g.tensor("text")), out) << "without saving";
}

// The gradient of a sum of equal terms: frames that share a timestep give what one timestep a sample gives, up to the
// order of fp32 sums.
TEST_P(Dit, GradientsWithATimestepAFrame) {
  Golden g(GetParam());
  NetworkDriver one = g.network(DType::kF32);
  g.shape.times = g.shape.frames;
  NetworkDriver many = g.network(DType::kF32);
  std::vector<float> times;
  for (const float t : g.tensor("timesteps")) times.insert(times.end(), static_cast<size_t>(g.shape.frames), t);
  double loss = 0;
  one.backward(loss_gradient(one.forward(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text")), g.tensor("target"), &loss));
  many.backward(loss_gradient(many.forward(g.tensor("latent"), times, g.tensor("text")), g.tensor("target"), &loss));
  double difference = 0, total = 0;
  for (const std::string& name : one.names()) {
    const double d = distance(many.gradient(name), one.gradient(name));
    difference += d * d;
    total += norm(one.gradient(name)) * norm(one.gradient(name));
  }
  EXPECT_LT(std::sqrt(difference / total), kFactor * g.meta["noise_fp32_angles64"]["grads_all"].get<double>() + kFloor);
}

TEST_P(Dit, Fp32Gradients) {
  const Golden g(GetParam());
  NetworkDriver net = g.network(DType::kF32);
  double loss = 0;
  const std::vector<float> out = net.forward(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text"));
  net.backward(loss_gradient(out, g.tensor("target"), &loss));
  EXPECT_NEAR(loss, g.meta["loss"].get<double>(), 2e-6 * loss);
  for (const auto& [name, got] : {std::pair{"grad.latent", &net.dlatent}, std::pair{"grad.text", &net.dtext}}) {
    const std::vector<float> want = g.tensor(name);
    EXPECT_LT(distance(*got, want) / norm(want), kFactor * g.noise(name) + kFloor) << name;
  }
  const bool whole = std::string(GetParam()) == "a";
  const SafetensorsFile grads =
      SafetensorsFile::open(g.folder + (whole ? "/grads.safetensors" : "/grads-every-16th-row.safetensors"));
  double difference = 0, total = 0;
  for (const std::string& name : net.names()) {
    std::vector<float> got = net.gradient(name);
    const std::vector<float> want = values(grads.view(name));
    if (got.size() != want.size()) {
      const Shape rows = grads.view(name).shape;
      const size_t row = want.size() / static_cast<size_t>(rows[0]);
      std::vector<float> some;
      for (size_t r = 0; r < static_cast<size_t>(rows[0]); ++r)
        some.insert(some.end(), got.begin() + static_cast<ptrdiff_t>(16 * r * row),
                    got.begin() + static_cast<ptrdiff_t>((16 * r + 1) * row));
      got = std::move(some);
    }
    const double d = distance(got, want);
    // A row sample of a tensor may lie further off than the tensor.
    EXPECT_LT(d / norm(want), (whole ? 1 : 2) * (kFactor * g.gradient_noise(name) + kFloor)) << name;
    difference += d * d;
    total += norm(want) * norm(want);
  }
  EXPECT_EQ(net.names().size(), grads.tensors().size());
  EXPECT_LT(std::sqrt(difference / total), kFactor * g.meta["noise_fp32_angles64"]["grads_all"].get<double>() + kFloor);
}

TEST_P(Dit, Bf16WithinTwiceTheLibrarysNoise) {
  const Golden g(GetParam());
  NetworkDriver net = g.network(DType::kBF16);
  double loss = 0;
  const std::vector<float> out = net.forward(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text")),
                           want = g.tensor("out");
  EXPECT_LT(distance(out, want) / norm(want), 2 * g.meta["noise_bf16"]["out_bf16"].get<double>());
  EXPECT_EQ(net.infer(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text")), out) << "without saving";
  // No golden bf16 gradients: each is within a few per cent of the fp32 ones, taken together.
  net.backward(loss_gradient(out, g.tensor("target"), &loss));
  NetworkDriver exact = g.network(DType::kF32);
  exact.backward(loss_gradient(exact.forward(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text")),
                               g.tensor("target"), &loss));
  double difference = 0, total = 0;
  for (const std::string& name : net.names()) {
    const std::vector<float> a = net.gradient(name), b = exact.gradient(name);
    difference += std::pow(distance(a, b), 2);
    total += std::pow(norm(b), 2);
    // An operand is off by 2^-9 relative at most; a gradient passes some thirty of them. Keys' biases are sums that
    // cancel: judged by the whole.
    if (name.find("to_k.bias") == std::string::npos) {
      EXPECT_LT(distance(a, b), 0.06 * norm(b)) << name;
    }
  }
  EXPECT_LT(std::sqrt(difference / total), 0.02);
}

TEST_P(Dit, ThreadsDoNotChangeBits) {
  const Golden g(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    NetworkDriver one = g.network(dtype, 1), two = g.network(dtype, 2);
    double loss = 0;
    const std::vector<float> out = one.forward(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text"));
    EXPECT_EQ(two.forward(g.tensor("latent"), g.tensor("timesteps"), g.tensor("text")), out);
    const std::vector<float> dout = loss_gradient(out, g.tensor("target"), &loss);
    one.backward(dout);
    two.backward(dout);
    for (const std::string& name : one.names()) EXPECT_EQ(one.gradient(name), two.gradient(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Dit, ::testing::Values("a", "b"));

}  // namespace
}  // namespace megaslide
