// Where the time of a stack of Wan blocks goes: seconds, share and GFLOP/s of every kernel.
//   bench_block [infer|train] [1.3b|tiny] [threads] [repeats] [amx|avx512|none]
// The last is the best unit for bf16 products that may be used; `none` leaves them to oneDNN.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/block_stack.h"
#include "kernels/tile/unit.h"

using namespace megaslide;

namespace {

ModelConfig config_of(const std::string& name) {
  ModelConfig c;
  c.layers = 2;
  if (name == "tiny") {
    c.dim = 192, c.heads = 4, c.ffn_dim = 768;
    c.attention.kind = AttentionKind::kDsa;
  } else {
    c.dim = 1536, c.heads = 12, c.ffn_dim = 8960;
  }
  return c;
}

double seconds_of(const auto& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::string what = argument(1, "train"), model = argument(2, "1.3b");
  const std::string unit = argument(5, "amx");
  limit_tile_unit(unit == "amx" ? TileUnit::kAmx : unit == "avx512" ? TileUnit::kAvx512 : TileUnit::kNone);
  const int threads = std::stoi(argument(3, "2")), repeats = std::stoi(argument(4, "5"));
  const BatchShape shape = model == "tiny"
                               ? BatchShape{.batch = 1, .frames = 5, .height = 8, .width = 8, .context_rows = 64}
                               : BatchShape{.batch = 1, .frames = 1, .height = 30, .width = 52, .context_rows = 512};
  const ModelConfig config = config_of(model);
  bench::BlockStack stack(config, shape, DType::kBF16, threads);
  stack.fill_random();
  const auto values = [](int64_t n, float by) {
    std::vector<float> v(static_cast<size_t>(n));
    for (size_t i = 0; i < v.size(); ++i) v[i] = by * static_cast<float>(static_cast<int>(i * 7919 % 1001) - 500);
    return v;
  };
  const int64_t n = shape.rows() * config.dim;
  const std::vector<float> x = values(n, 2e-3F), dy = values(n, 1e-5F), context = values(shape.context_rows * config.dim, 2e-3F),
                           modulation = values(6 * config.dim, 5e-4F);
  std::vector<float> y(x.size()), dx(x.size());
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    if (i == 1) stack.stream().profile.clear();
    stack.pack(what == "train");
    times.push_back(seconds_of([&] {
      if (what == "train")
        stack.train(x.data(), context.data(), modulation.data(), dy.data(), y.data(), dx.data());
      else
        stack.infer(x.data(), context.data(), modulation.data(), y.data());
    }));
  }
  times.erase(times.begin());
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  double total = 0;
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [name, e] : stack.stream().profile) {
    order.emplace_back(e.seconds, name);
    total += e.seconds;
  }
  std::sort(order.rbegin(), order.rend());
  fmt::print("{} {}, {} threads: median {:.1f} ms, best {:.1f} ms, {:.0f} tokens/s (without packing)\n", what, model, threads,
             1e3 * median, 1e3 * times[0], static_cast<double>(shape.rows()) / median);
  for (const auto& [seconds, name] : order) {
    const auto& e = stack.stream().profile[name];
    fmt::print("{:28} {:9.2f} ms {:5.1f}% {:6} calls {:8.0f} GFLOP/s\n", name, 1e3 * seconds / repeats,
               100 * seconds / total, e.calls / repeats, 1e-9 * e.flops / seconds);
  }
}
