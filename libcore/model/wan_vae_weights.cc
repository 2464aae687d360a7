#include "model/wan_vae_weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace megaslide {
namespace {
using Kind = WanVaeStep::Kind;

class Loader {
 public:
  Loader(Stream& stream, const SafetensorsSource& source, DType dtype)
      : stream_(stream), source_(source), dtype_(dtype) {}

  HostTensor vector(const std::string& name, int64_t first = 0, int64_t count = -1) {
    const TensorView v = source_.view(name);
    if (count < 0) count = v.elements();
    HostTensor out(DType::kF32, {(count + kConvPanel - 1) / kConvPanel * kConvPanel});
    convert_to_f32(out.f32(), v.data + first * dtype_bytes(v.dtype), v.dtype, count);
    return out;
  }
  PackedConv convolution(const std::string& name, ConvShape shape, int64_t first_out = 0) {
    const HostTensor w = weight(name, first_out * shape.in * shape.taps(), shape.weights());
    PackedConv c = pack(shape, w.f32());
    c.bias = vector(name + ".bias", first_out, shape.out);
    source_.drop_pages(name + ".weight");
    return c;
  }
  // The four phases of a 3×3 convolution behind an upsampling.
  void phases(const std::string& name, int64_t in, int64_t out, std::vector<PackedConv>& to) {
    const HostTensor w = weight(name, 0, in * out * 9);
    HostTensor folded(DType::kF32, {4, in * out * 4});
    fold_upsample(folded.f32(), w.f32(), out, in);
    const ConvShape shape{.in = in, .out = out, .kt = 1, .kh = 2, .kw = 2};
    for (int64_t i = 0; i < 4; ++i) {
      to.push_back(pack(shape, folded.f32() + i * shape.weights()));
      to.back().bias = vector(name + ".bias");
    }
    source_.drop_pages(name + ".weight");
  }

 private:
  HostTensor weight(const std::string& name, int64_t first, int64_t count) {
    const TensorView v = source_.view(name + ".weight");
    HostTensor out(DType::kF32, {count});
    convert_to_f32(out.f32(), v.data + first * dtype_bytes(v.dtype), v.dtype, count);
    return out;
  }
  PackedConv pack(const ConvShape& shape, const float* w) {
    PackedConv c{shape, HostTensor(DType::kF32, {conv_packed_bytes(shape, dtype_) / 4}), {}};
    conv_pack(stream_, c.packed.data(), w, shape, dtype_);
    return c;
  }
  Stream& stream_;
  const SafetensorsSource& source_;
  DType dtype_;
};

ConvShape cube(int64_t in, int64_t out) { return {.in = in, .out = out, .kt = 3, .kh = 3, .kw = 3}; }

WanVaeStepWeights load_step(Loader& loader, const WanVaeStep& s) {
  WanVaeStepWeights w;
  const ConvShape point{.in = s.in, .out = s.out}, time{.in = s.in, .out = s.in, .kt = 3};
  switch (s.kind) {
    case Kind::kConv:
      w.convolutions.push_back(loader.convolution(s.name, s.pointwise ? point : cube(s.in, s.out)));
      break;
    case Kind::kResidual:
      w.gamma1 = loader.vector(s.name + ".norm1.gamma");
      w.gamma2 = loader.vector(s.name + ".norm2.gamma");
      w.convolutions.push_back(loader.convolution(s.name + ".conv1", cube(s.in, s.out)));
      w.convolutions.push_back(loader.convolution(s.name + ".conv2", cube(s.out, s.out)));
      if (s.in != s.out) w.convolutions.push_back(loader.convolution(s.name + ".conv_shortcut", point));
      break;
    case Kind::kAttention:
      w.gamma1 = loader.vector(s.name + ".norm.gamma");
      w.convolutions.push_back(loader.convolution(s.name + ".to_qkv", {.in = s.in, .out = 3 * s.in}));
      w.convolutions.push_back(loader.convolution(s.name + ".proj", point));
      break;
    case Kind::kDown:
      w.convolutions.push_back(
          loader.convolution(s.name + ".resample.1", {.in = s.in, .out = s.out, .kt = 1, .kh = 3, .kw = 3}));
      if (s.temporal) w.convolutions.push_back(loader.convolution(s.name + ".time_conv", time));
      break;
    case Kind::kUp:
      loader.phases(s.name + ".resample.1", s.in, s.out, w.convolutions);
      if (s.temporal) {
        w.convolutions.push_back(loader.convolution(s.name + ".time_conv", time));
        w.convolutions.push_back(loader.convolution(s.name + ".time_conv", time, s.in));
      }
      break;
    case Kind::kHead:
      w.gamma1 = loader.vector(s.name + "norm_out.gamma");
      w.convolutions.push_back(loader.convolution(s.name + "conv_out", cube(s.in, s.out)));
      break;
  }
  return w;
}

std::string list(const std::vector<std::string>& items) {
  constexpr size_t kShown = 20;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, items.size()); ++i) text += "\n  " + items[i];
  if (items.size() > kShown) text += fmt::format("\n  and {} more", items.size() - kShown);
  return text;
}

}  // namespace

void check_wan_vae_tensors(const SafetensorsSource& source, const WanVaeConfig& config) {
  const std::map<std::string, Shape> wanted = wan_vae_tensors(config);
  std::vector<std::string> findings;
  for (const auto& [name, shape] : wanted) {
    const auto i = source.tensors().find(name);
    if (i == source.tensors().end()) {
      findings.push_back(fmt::format("{}: missing", name));
      continue;
    }
    const TensorInfo& info = i->second.info;
    if (info.shape != shape)
      findings.push_back(fmt::format("{}: {}, the config says {}", name, to_string(info.shape), to_string(shape)));
    if (!is_weight_dtype(info.dtype))
      findings.push_back(fmt::format("{}: {}, not F32, F16 or BF16", name, dtype_name(info.dtype)));
  }
  for (const auto& [name, entry] : source.tensors())
    if (!wanted.contains(name)) findings.push_back(fmt::format("{}: not part of this autoencoder", name));
  if (findings.empty()) return;
  throw usage_error(
      fmt::format("{} of {} tensors do not fit the autoencoder's config.json:{}", findings.size(), wanted.size(),
                  list(findings)),
      "import the checkpoint again with shard-weights, or take the config.json that came with the weights");
}

std::vector<WanVaeStepWeights> load_wan_vae_side(Stream& stream, const SafetensorsSource& source,
                                                 const std::vector<WanVaeStep>& steps, DType dtype) {
  Loader loader(stream, source, dtype);
  std::vector<WanVaeStepWeights> weights;
  for (const WanVaeStep& s : steps) weights.push_back(load_step(loader, s));
  return weights;
}

}  // namespace megaslide
