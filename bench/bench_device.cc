// What a device gives: products, attention and blocks at the sizes that runs have, in bf16, by the device's own clock.
//   bench_device products|attention|layers [cuda|cpu] [full|tiny]
// tiny: sizes that tell nothing, for the processor or to try the program.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/load.h"
#include "config/search_path.h"
#include "plan/calibrate_device.h"
#include "plan/kernel_times.h"

using namespace megaslide;

namespace {

constexpr double kTera = 1e-12, kMilli = 1e3;

struct Model {
  const char* preset;
  int64_t latent_frames;  // of 30 × 52 tokens
};
const Model kModels[] = {{"wan2.1-t2v-1.3b", 21}, {"wan2.1-t2v-14b", 21}, {"megaslide-105b", 8}};

ModelConfig config_of(const Model& model, bool tiny) {
  ModelConfig c = load_model_config(tiny ? "tiny" : model.preset);
  c.attention.kind = AttentionKind::kDsa;
  return c;
}

void products(Device& device, bool tiny) {
  const double best = measure_square_products_up_to(device, tiny ? 256 : 16384, DType::kBF16);
  fmt::print("square products at best {:.4g} Tflop/s\n", best * kTera);
  for (const Model& model : kModels) {
    const ModelConfig c = config_of(model, tiny);
    const int64_t m = tiny ? 64 : model.latent_frames * 30 * 52;
    const struct {
      const char* what;
      int64_t n, k;
    } layers[] = {{"q, k, v, out", c.dim, c.dim}, {"ffn up", c.ffn_dim, c.dim}, {"ffn down", c.dim, c.ffn_dim}};
    for (const auto& l : layers) {
      const double rate = 2.0 * static_cast<double>(m) * static_cast<double>(l.n) * static_cast<double>(l.k) / measure_linear(device, m, l.n, l.k, 5);
      fmt::print("{} {}, {} x {} x {}: {:.4g} Tflop/s, {:.0f}% of the best\n", c.name, l.what, m, l.n, l.k, rate * kTera, 100 * rate / best);
    }
    if (tiny) return;
  }
}

void attention(Device& device, bool tiny) {
  struct Grid {
    int64_t t, h, w;
    double cudnn_ms;  // a head forward on an H100, from natten.org/profiler (1 and 24 heads of 128); 0: not there
  };
  const std::vector<Grid> grids = tiny ? std::vector<Grid>{{2, 8, 8, 0}} : std::vector<Grid>{{8, 64, 64, 0.787}, {30, 48, 80, 283.327 / 24}, {32, 128, 128, 0}};
  for (const Grid& g : grids) {
    DsaShape s;
    s.frames = g.t, s.height = g.h, s.width = g.w;
    s.head_dim = tiny ? 32 : 128;
    s.scale = 1 / std::sqrt(static_cast<float>(s.head_dim));
    s.kernel[0] = 3, s.kernel[1] = s.kernel[2] = 7;
    double dense = 0;
    for (const auto& [name, kind] : {std::pair{"dense", AttentionKind::kDense}, {"window", AttentionKind::kWindow}, {"dsa", AttentionKind::kDsa}}) {
      const PassTimes t = measure_attention(device, kind, s, kind == AttentionKind::kDense ? 2 : 5);
      const double both = t.forward + t.backward;
      if (kind == AttentionKind::kDense) dense = both;
      fmt::print("{} {} tokens a head: forward {:.4g} ms ({:.3g} Tflop/s), backward {:.4g} ms ({:.3g})", name, s.tokens(), t.forward * kMilli,
                 t.forward_flops / t.forward * kTera, t.backward * kMilli, t.backward_flops / t.backward * kTera);
      if (kind != AttentionKind::kDense) fmt::print(", {:.3g} times as fast as dense", dense / both);
      if (kind == AttentionKind::kDense && g.cudnn_ms > 0) fmt::print(", cuDNN on an H100 {:.4g} ms forward", g.cudnn_ms);
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
}

void layers(Device& device, bool tiny) {
  for (const Model& model : kModels) {
    const ModelConfig c = config_of(model, tiny);
    BatchShape shape{.batch = 1, .frames = model.latent_frames, .height = 30, .width = 52, .context_rows = 512};
    if (tiny) shape = {.batch = 1, .frames = 2, .height = 4, .width = 4, .context_rows = 8};
    const PassTimes t = measure_layer(device, c, shape, 3);
    fmt::print("{} {} tokens: forward {:.4g} ms ({:.3g} Tflop/s), forward again and backward {:.4g} ms ({:.3g})\n", c.name, shape.tokens(),
               t.forward * kMilli, t.forward_flops / t.forward * kTera, t.backward * kMilli, t.backward_flops / t.backward * kTera);
    std::fflush(stdout);
    if (tiny) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::string what = argument(1, ""), backend = argument(2, "cuda"), size = argument(3, "full");
  void (*measure)(Device&, bool) = what == "products" ? products : what == "attention" ? attention : what == "layers" ? layers : nullptr;
  if (!measure || (backend != "cuda" && backend != "cpu") || (size != "full" && size != "tiny")) {
    std::fputs("usage: bench_device products|attention|layers [cuda|cpu] [full|tiny]\n", stderr);
    return 2;
  }
  try {
    set_config_directories({MEGASLIDE_SOURCE_DIR "/configs"});
    const auto device = make_device(backend == "cuda" ? Backend::kCuda : Backend::kCpu, {.threads = 2, .trace = true});
    measure(*device, size == "tiny");
  } catch (const Error& e) {
    fmt::print(stderr, "bench_device: {}\n", e.what());
    return 1;
  }
  return 0;
}
