// The Wan autoencoders: frame convolutions at their shapes in FLOP/s, and a network of full size with random weights,
// one latent frame (four frames of pixels) an iteration, as seconds.
//   bench_vae --benchmark_filter=conv
//   bench_vae --benchmark_filter=decode_bf16
#include <benchmark/benchmark.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "kernels/conv3d/conv3d.h"
#include "model/wan_vae_network.h"

namespace megaslide {
namespace {

// Small numbers of either sign, no two neighbours alike.
HostTensor numbers(Shape shape, float scale) {
  HostTensor t(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = (static_cast<float>(i * 7919 % 509) / 254.0F - 1) * scale;
  return t;
}

PackedConv random_convolution(Stream& stream, const ConvShape& s, DType dtype) {
  const HostTensor w = numbers({s.weights()}, 1.7F / std::sqrt(static_cast<float>(s.in * s.taps())));
  PackedConv c{s, HostTensor(DType::kF32, {conv_packed_bytes(s, dtype) / 4}),
               HostTensor(DType::kF32, {(s.out + kConvPanel - 1) / kConvPanel * kConvPanel})};
  conv_pack(stream, c.packed.data(), w.f32(), s, dtype);
  return c;
}

void conv(benchmark::State& b, DType dtype) {
  InlineStream stream(available_threads());
  const int64_t in = b.range(0), out = b.range(1), h = b.range(2), w = b.range(3);
  const PackedConv c = random_convolution(stream, {.in = in, .out = out, .kt = 3, .kh = 3, .kw = 3}, dtype);
  const FrameLayout from{h, w, in, dtype}, to{h, w, out, dtype};
  std::vector<HostTensor> frames;
  frames.reserve(3);
  for (int i = 0; i < 3; ++i) frames.emplace_back(dtype, Shape{from.elements()});
  HostTensor raw(dtype, {to.elements()}), normed(dtype, {to.elements()}), residual(dtype, {to.elements()});
  const HostTensor gamma = numbers({(out + kConvPanel - 1) / kConvPanel * kConvPanel}, 1);
  FrameConv call;
  call.shape = c.shape;
  call.packed = c.packed.data();
  call.in = from;
  for (size_t i = 0; i < 3; ++i) call.frames[i] = frames[i].data();
  call.dy = call.dx = -1;
  call.rows = h;
  call.columns = w;
  call.finish.out = to;
  call.finish.bias = c.bias.f32();
  call.finish.residual = residual.data();
  call.finish.raw = raw.data();
  call.finish.normed = normed.data();
  call.finish.gamma = gamma.f32();
  for (auto _ : b) frame_conv(stream, call);
  const double flops = 2.0 * static_cast<double>(h * w) * static_cast<double>(c.shape.weights());
  b.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

// Weights of a side as load_wan_vae_side would give them.
std::vector<WanVaeStepWeights> random_weights(Stream& stream, const std::vector<WanVaeStep>& steps, DType dtype) {
  using Kind = WanVaeStep::Kind;
  std::vector<WanVaeStepWeights> weights;
  for (const WanVaeStep& s : steps) {
    WanVaeStepWeights w;
    const auto add = [&](ConvShape shape) { w.convolutions.push_back(random_convolution(stream, shape, dtype)); };
    const ConvShape cube{.in = s.in, .out = s.out, .kt = 3, .kh = 3, .kw = 3}, point{.in = s.in, .out = s.out};
    w.gamma1 = numbers({(s.in + 15) / 16 * 16}, 1);
    w.gamma2 = numbers({(s.out + 15) / 16 * 16}, 1);
    switch (s.kind) {
      case Kind::kConv:
        add(s.pointwise ? point : cube);
        break;
      case Kind::kHead:
        add(cube);
        break;
      case Kind::kResidual:
        add(cube);
        add({.in = s.out, .out = s.out, .kt = 3, .kh = 3, .kw = 3});
        if (s.in != s.out) add(point);
        break;
      case Kind::kAttention:
        add({.in = s.in, .out = 3 * s.in});
        add(point);
        break;
      case Kind::kDown:
        add({.in = s.in, .out = s.out, .kt = 1, .kh = 3, .kw = 3});
        if (s.temporal) add({.in = s.out, .out = s.out, .kt = 3});
        break;
      case Kind::kUp:
        for (int i = 0; i < 4; ++i) add({.in = s.in, .out = s.out, .kt = 1, .kh = 2, .kw = 2});
        for (int i = 0; i < 2 && s.temporal; ++i) add({.in = s.in, .out = s.in, .kt = 3});
        break;
    }
    weights.push_back(std::move(w));
  }
  return weights;
}

WanVaeConfig full_size(bool v22) {
  nlohmann::json j = nlohmann::json::object();
  if (v22)
    j = {{"z_dim", 48},     {"base_dim", 160},   {"decoder_base_dim", 256}, {"is_residual", true},
         {"patch_size", 2}, {"in_channels", 12}, {"out_channels", 12}};
  return wan_vae_config(j, "bench");
}

void network(benchmark::State& b, WanVaeSide side, DType dtype, bool v22) {
  InlineStream stream(available_threads());
  const WanVaeConfig config = full_size(v22);
  const auto steps = wan_vae_steps(config, side);
  const auto weights = random_weights(stream, steps, dtype);
  const int64_t cell = side == WanVaeSide::kEncoder ? config.patch : config.spatial_stride();
  WanVaeNetwork network(steps, weights, b.range(0) / cell, b.range(1) / cell, dtype);
  const int64_t frames = side == WanVaeSide::kEncoder ? config.temporal_stride() : 1;
  const auto nothing = [](const void*, const FrameLayout&) {};
  for (int i = 0; i < 3; ++i) network.push(stream, nothing);  // from here on every frame has its history
  for (auto _ : b)
    for (int64_t t = 0; t < frames; ++t) network.push(stream, nothing);
  b.counters["working_MB"] =
      static_cast<double>(WanVaeNetwork::working_bytes(steps, b.range(0) / cell, b.range(1) / cell, dtype)) * 1e-6;
}

void shapes(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond)->ArgNames({"in", "out", "H", "W"});
  b->Args({96, 96, 128, 128})->Args({192, 192, 64, 64})->Args({384, 384, 32, 32})->Args({384, 384, 16, 16});
  b->Args({96, 96, 480, 832})->Args({1024, 1024, 30, 52});
}
void sizes(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kSecond)->ArgNames({"H", "W"})->Iterations(1);
  b->Args({128, 128})->Args({480, 832});
}
BENCHMARK_CAPTURE(conv, fp32, DType::kF32)->Apply(shapes);
BENCHMARK_CAPTURE(conv, bf16, DType::kBF16)->Apply(shapes);
BENCHMARK_CAPTURE(network, vae21_decode_fp32, WanVaeSide::kDecoder, DType::kF32, false)->Apply(sizes);
BENCHMARK_CAPTURE(network, vae21_decode_bf16, WanVaeSide::kDecoder, DType::kBF16, false)->Apply(sizes);
BENCHMARK_CAPTURE(network, vae21_encode_fp32, WanVaeSide::kEncoder, DType::kF32, false)->Apply(sizes);
BENCHMARK_CAPTURE(network, vae22_decode_bf16, WanVaeSide::kDecoder, DType::kBF16, true)->Apply(sizes);
BENCHMARK_CAPTURE(network, vae22_encode_fp32, WanVaeSide::kEncoder, DType::kF32, true)->Apply(sizes);

}  // namespace
}  // namespace megaslide
