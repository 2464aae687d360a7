#include "model/wan_vae_weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace megaslide {
namespace {
using Kind = WanVaeStep::Kind;

int64_t padded(int64_t channels) { return (channels + kConvPanel - 1) / kConvPanel * kConvPanel; }

class Loader {
 public:
  Loader(Stream& stream, ModelMemory* memory, const SafetensorsSource& source, DType dtype)
      : stream_(stream), memory_(memory), source_(source), dtype_(dtype) {}

  ModelBuffer vector(const std::string& name, int64_t first = 0, int64_t count = -1) {
    const TensorView v = source_.view(name);
    if (count < 0) count = v.elements();
    HostTensor out(DType::kF32, {padded(count)});
    convert_to_f32(out.f32(), v.data + first * dtype_bytes(v.dtype), v.dtype, count);
    return ModelBuffer::holding(memory_, std::move(out), "codec: a vector");
  }
  PackedConv convolution(const std::string& name, const ConvShape& shape, int64_t first_out = 0) {
    const HostTensor w = weight(name, first_out * shape.in * shape.taps(), shape.weights());
    PackedConv c = pack(shape, w.f32());
    c.bias = vector(name + ".bias", first_out, shape.out);
    source_.drop_pages(name + ".weight");
    return c;
  }
  // Phase `i` of a 3×3 convolution behind an upsampling.
  PackedConv phase(const std::string& name, const ConvShape& shape, int64_t i) {
    if (i == 0) {
      const HostTensor w = weight(name, 0, shape.in * shape.out * 9);
      folded_ = HostTensor(DType::kF32, {4, shape.weights()});
      fold_upsample(folded_.f32(), w.f32(), shape.out, shape.in);
      source_.drop_pages(name + ".weight");
    }
    PackedConv c = pack(shape, folded_.f32() + i * shape.weights());
    c.bias = vector(name + ".bias");
    return c;
  }

 private:
  HostTensor weight(const std::string& name, int64_t first, int64_t count) {
    const TensorView v = source_.view(name + ".weight");
    HostTensor out(DType::kF32, {count});
    convert_to_f32(out.f32(), v.data + first * dtype_bytes(v.dtype), v.dtype, count);
    return out;
  }
  PackedConv pack(const ConvShape& shape, const float* w) {
    PackedConv c{shape, ModelBuffer(memory_, conv_packed_bytes(shape, dtype_, stream_.target()), "codec: a convolution"), {}};
    if (!memory_) {
      conv_pack(stream_, c.packed.data(), w, shape, dtype_);
      return c;
    }
    const int64_t bytes = shape.weights() * dtype_bytes(DType::kF32);
    ModelBuffer there(memory_, bytes, "codec: weights to pack");
    memory_->upload(there.data(), w, bytes);
    conv_pack(stream_, c.packed.data(), there.f32(), shape, dtype_);
    memory_->wait(memory_->mark());
    return c;
  }
  Stream& stream_;
  ModelMemory* memory_;
  const SafetensorsSource& source_;
  DType dtype_;
  HostTensor folded_;
};

ConvShape cube(int64_t in, int64_t out) { return {.in = in, .out = out, .kt = 3, .kh = 3, .kw = 3}; }

WanVaeStepWeights load_step(Loader& loader, const WanVaeStep& s) {
  WanVaeStepWeights w;
  const std::vector<ConvShape> shapes = wan_vae_convolutions(s);
  const auto add = [&](const std::string& name, int64_t first_out = 0) {
    w.convolutions.push_back(loader.convolution(name, shapes[w.convolutions.size()], first_out));
  };
  switch (s.kind) {
    case Kind::kConv:
      add(s.name);
      break;
    case Kind::kResidual:
      w.gamma1 = loader.vector(s.name + ".norm1.gamma");
      w.gamma2 = loader.vector(s.name + ".norm2.gamma");
      add(s.name + ".conv1");
      add(s.name + ".conv2");
      if (s.in != s.out) add(s.name + ".conv_shortcut");
      break;
    case Kind::kAttention:
      w.gamma1 = loader.vector(s.name + ".norm.gamma");
      add(s.name + ".to_qkv");
      add(s.name + ".proj");
      break;
    case Kind::kDown:
      add(s.name + ".resample.1");
      if (s.temporal) add(s.name + ".time_conv");
      break;
    case Kind::kUp:
      for (int64_t i = 0; i < 4; ++i)
        w.convolutions.push_back(loader.phase(s.name + ".resample.1", shapes[static_cast<size_t>(i)], i));
      if (s.temporal) {
        add(s.name + ".time_conv");
        add(s.name + ".time_conv", s.in);
      }
      break;
    case Kind::kHead:
      w.gamma1 = loader.vector(s.name + "norm_out.gamma");
      add(s.name + "conv_out");
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

std::vector<ConvShape> wan_vae_convolutions(const WanVaeStep& s) {
  const ConvShape point{.in = s.in, .out = s.out}, time{.in = s.in, .out = s.in, .kt = 3};
  std::vector<ConvShape> shapes;
  switch (s.kind) {
    case Kind::kConv:
      return {s.pointwise ? point : cube(s.in, s.out)};
    case Kind::kResidual:
      shapes = {cube(s.in, s.out), cube(s.out, s.out)};
      if (s.in != s.out) shapes.push_back(point);
      return shapes;
    case Kind::kAttention:
      return {{.in = s.in, .out = 3 * s.in}, point};
    case Kind::kDown:
      shapes = {{.in = s.in, .out = s.out, .kt = 1, .kh = 3, .kw = 3}};
      if (s.temporal) shapes.push_back(time);
      return shapes;
    case Kind::kUp:
      shapes.assign(4, {.in = s.in, .out = s.out, .kt = 1, .kh = 2, .kw = 2});
      if (s.temporal) shapes.insert(shapes.end(), 2, time);
      return shapes;
    case Kind::kHead:
      return {cube(s.in, s.out)};
  }
  return shapes;
}

std::vector<WanVaeStepWeights> load_wan_vae_side(Stream& stream, ModelMemory* memory, const SafetensorsSource& source,
                                                 const std::vector<WanVaeStep>& steps, DType dtype) {
  Loader loader(stream, memory, source, dtype);
  std::vector<WanVaeStepWeights> weights;
  weights.reserve(steps.size());
  for (const WanVaeStep& s : steps) weights.push_back(load_step(loader, s));
  return weights;
}

WanVaeWeightBytes wan_vae_weight_bytes(const std::vector<WanVaeStep>& steps, DType dtype) {
  WanVaeWeightBytes bytes;
  const auto add = [&](int64_t n) { bytes.held += ModelMemory::rounded(n); };
  const auto vector = [&](int64_t channels) { add(padded(channels) * dtype_bytes(DType::kF32)); };
  for (const WanVaeStep& s : steps) {
    if (s.kind == Kind::kResidual || s.kind == Kind::kAttention || s.kind == Kind::kHead) vector(s.in);
    if (s.kind == Kind::kResidual) vector(s.out);
    for (const ConvShape& c : wan_vae_convolutions(s)) {
      vector(c.out);
      add(conv_packed_bytes(c, dtype, Backend::kCuda));
      bytes.passing = std::max(bytes.passing, ModelMemory::rounded(c.weights() * dtype_bytes(DType::kF32)));
    }
  }
  return bytes;
}

}  // namespace megaslide
