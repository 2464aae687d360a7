#include "vision/musiq_stem.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"
#include "kernels/cells/cells.h"

namespace megaslide {
namespace {

constexpr int64_t kGroups = 32;
constexpr float kRootEps = 1e-6f, kBlockEps = 1e-4f;
constexpr double kDeviationEps = 1e-5;
constexpr int64_t kRootSide = 7, kSide = kMusiqPatch / 2;  // of the first kernel, of its result
constexpr int64_t kBatch = 16;                             // patches at a time

// A convolution as a linear layer of unfolded windows: standardised, the channels of a cell together.
PackedLinear standardised(const Place& place, const NetworkWeights& file, const std::string& name) {
  const HostTensor w = file.read(name);
  const int64_t outputs = w.shape()[0], channels = w.shape()[1], taps = w.shape()[2] * w.shape()[3], n = channels * taps;
  HostTensor out(DType::kF32, {outputs, n});
  for (int64_t o = 0; o < outputs; ++o) {
    const float* from = w.f32() + o * n;
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(from[i]);
    mean /= static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(from[i]) - mean, 2);
    const double deviation = std::sqrt(squares / static_cast<double>(n - 1)) + kDeviationEps;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t t = 0; t < taps; ++t)
        out.f32()[o * n + t * channels + c] = static_cast<float>((static_cast<double>(from[c * taps + t]) - mean) / deviation);
  }
  return {place, out, HostTensor(), Products::kFloat};
}

}  // namespace

MusiqStem::Channels MusiqStem::Channels::of(const NetworkWeights& file) {
  const auto channels = [&](const std::string& name) {
    const Shape& s = file.shape(name);
    if (s.size() != 4 || s[0] < kGroups || s[0] % kGroups != 0 || s[0] > kGroupNormMaxChannels)
      throw Error(fmt::format("{}: {} is {}, not a convolution to a multiple of {} channels", file.path(), quote_for_message(name), to_string(s), kGroups),
                  "use the published file of MUSIQ");
    return s[0];
  };
  return {channels("conv_root.weight"), channels("block1.conv3.weight")};
}

void MusiqStem::Channels::add_tensors(std::map<std::string, Shape>& expected) const {
  expected["conv_root.weight"] = {inner, 3, kRootSide, kRootSide};
  expected["block1.conv1.weight"] = {inner, inner, 1, 1};
  expected["block1.conv2.weight"] = {inner, inner, 3, 3};
  expected["block1.conv3.weight"] = expected["block1.conv_proj.weight"] = {outer, inner, 1, 1};
  for (const char* end : {".weight", ".bias"}) {
    for (const char* name : {"gn_root", "block1.gn1", "block1.gn2"}) expected[name + std::string(end)] = {inner};
    for (const char* name : {"block1.gn3", "block1.gn_proj"}) expected[name + std::string(end)] = {outer};
  }
}

MusiqStem::MusiqStem(const Place& place, const NetworkWeights& file, const Channels& channels)
    : channels_(channels), root_(standardised(place, file, "conv_root.weight")), conv1_(standardised(place, file, "block1.conv1.weight")),
      conv2_(standardised(place, file, "block1.conv2.weight")), conv3_(standardised(place, file, "block1.conv3.weight")),
      shortcut_(standardised(place, file, "block1.conv_proj.weight")) {
  const auto norm = [&](const std::string& name, float eps) { return Norm{{place, file.read(name + ".weight")}, {place, file.read(name + ".bias")}, eps}; };
  norm_root_ = norm("gn_root", kRootEps);
  norm1_ = norm("block1.gn1", kBlockEps);
  norm2_ = norm("block1.gn2", kBlockEps);
  norm3_ = norm("block1.gn3", kBlockEps);
  norm_shortcut_ = norm("block1.gn_proj", kBlockEps);
}

// Of a batch of patches: windows, and results of the convolutions.
struct MusiqStem::Buffers {
  Buffers(const Place& place, const Channels& s)
      : windows(place, DType::kF32, {kBatch * std::max(kSide * kSide * kRootSide * kRootSide * 3, kResultSide * kResultSide * 9 * s.inner)}),
        root(place, DType::kF32, {kBatch * kSide * kSide * s.inner}), pooled(place, DType::kF32, {kBatch * kResultSide * kResultSide * s.inner}),
        inner(place, DType::kF32, {pooled.elements()}), shortcut(place, DType::kF32, {kBatch * kResultSide * kResultSide * s.outer}) {}
  mutable PlacedTensor windows, root, pooled, inner, shortcut;
};

PlacedTensor MusiqStem::forward(const Place& place, const HostTensor& pixels) const {
  const int64_t n = pixels.shape()[0], patch = kMusiqPatch * kMusiqPatch * 3;
  const PlacedInput there(place, pixels);
  PlacedTensor out(place, DType::kF32, {n, kResultSide, kResultSide, channels_.outer});
  const Buffers b(place, channels_);
  for (int64_t i = 0; i < n; i += kBatch) forward_batch(place, b, out.f32() + i * outputs(), there.f32() + i * patch, std::min(kBatch, n - i));
  return out;
}

void MusiqStem::forward_batch(const Place& place, const Buffers& b, float* out, const float* pixels, int64_t n) const {
  const int64_t cells = n * kResultSide * kResultSide;
  const CellWindows first = same_windows(n, kMusiqPatch, kMusiqPatch, 3, kRootSide, 2);
  unfold_cells(place.stream(), b.windows.f32(), pixels, first);
  root_.forward(place, b.root.f32(), b.windows.data(), first.results());
  norm(place, b.root.f32(), b.root.f32(), nullptr, norm_root_, n, kSide, true);
  max_pool_cells(place.stream(), b.pooled.f32(), b.root.f32(), same_windows(n, kSide, kSide, channels_.inner, 3, 2));

  shortcut_.forward(place, b.shortcut.f32(), b.pooled.data(), cells);
  norm(place, b.shortcut.f32(), b.shortcut.f32(), nullptr, norm_shortcut_, n, kResultSide, false);

  conv1_.forward(place, b.inner.f32(), b.pooled.data(), cells);
  norm(place, b.inner.f32(), b.inner.f32(), nullptr, norm1_, n, kResultSide, true);
  unfold_cells(place.stream(), b.windows.f32(), b.inner.f32(), same_windows(n, kResultSide, kResultSide, channels_.inner, 3, 1));
  conv2_.forward(place, b.inner.f32(), b.windows.data(), cells);
  norm(place, b.inner.f32(), b.inner.f32(), nullptr, norm2_, n, kResultSide, true);
  conv3_.forward(place, out, b.inner.data(), cells);
  norm(place, out, out, b.shortcut.f32(), norm3_, n, kResultSide, true);
}

void MusiqStem::norm(const Place& place, float* y, const float* x, const float* addend, const Norm& norm, int64_t n, int64_t side, bool relu) const {
  group_norm_forward(place.stream(), y, x, addend, norm.weight.f32(), norm.bias.f32(),
                     {.samples = n, .cells = side * side, .channels = norm.weight.elements(), .groups = kGroups}, norm.eps, relu);
}

}  // namespace megaslide
