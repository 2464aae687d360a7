#include "vision/frame_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/frame/frame_ops.h"

namespace megaslide {
namespace {
size_t at(int64_t i) { return static_cast<size_t>(i); }

int64_t whole_panels(int64_t channels) { return (channels + kConvPanel - 1) / kConvPanel * kConvPanel; }

PlacedTensor panel_vector(const Place& place, const std::vector<float>& values, int64_t channels) {
  HostTensor v(DType::kF32, {whole_panels(channels)});
  std::ranges::copy(values, v.f32());
  return {place, std::move(v)};
}
}  // namespace

ReplicatePadding replicate_padding(int64_t width, int64_t height, int64_t unit) {
  const int64_t across = (unit - width % unit) % unit, down = (unit - height % unit) % unit;
  return {across / 2, across - across / 2, down / 2, down - down / 2};
}

Frame::Frame(const Place& place, int64_t height, int64_t width, int64_t channels, int64_t border)
    : layout_{.height = height, .width = width, .channels = channels, .dtype = DType::kF32, .border = border}, memory_(place, DType::kF32, {layout_.elements()}) {}

Frame Frame::constant(const Place& place, int64_t height, int64_t width, float value) {
  Frame f;
  f.layout_ = {.height = height, .width = width, .channels = 1, .dtype = DType::kF32, .border = 0};
  HostTensor cells(DType::kF32, {f.layout_.elements()});
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) cells.f32()[f.layout_.cell(y, x)] = value;
  f.memory_ = {place, std::move(cells)};
  return f;
}

HostTensor Frame::planes(const Place& place) const {
  PlacedTensor out(place, DType::kF32, {layout_.channels, layout_.height, layout_.width});
  frame_to_planes(place.stream(), out.f32(), data(), layout_, {.plane = layout_.height * layout_.width, .width = layout_.width, .count = layout_.channels});
  return out.to_host(place);
}

ConvWeights ConvWeights::read(const NetworkWeights& weights, const std::string& name) {
  const HostTensor w = weights.read(name + ".weight"), b = weights.read(name + ".bias");
  MS_CHECK(w.shape().size() == 4 && b.elements() == w.shape()[0], "{}", name);
  ConvWeights c;
  c.shape = {.in = w.shape()[1], .out = w.shape()[0], .kt = 1, .kh = w.shape()[2], .kw = w.shape()[3]};
  c.w.assign(w.f32(), w.f32() + w.elements());
  c.bias.assign(b.f32(), b.f32() + b.elements());
  return c;
}

ConvWeights ConvWeights::outputs(int64_t first, int64_t count) const {
  MS_CHECK(first >= 0 && first + count <= shape.out);
  ConvWeights c{shape, {}, {}};
  c.shape.out = count;
  const int64_t each = shape.in * shape.taps();
  c.w.assign(w.begin() + first * each, w.begin() + (first + count) * each);
  if (!bias.empty()) c.bias.assign(bias.begin() + first, bias.begin() + first + count);
  return c;
}

ConvWeights ConvWeights::inputs(int64_t first, int64_t count) const {
  MS_CHECK(first >= 0 && first + count <= shape.in);
  ConvWeights c{shape, {}, bias};
  c.shape.in = count;
  for (int64_t o = 0; o < shape.out; ++o) {
    const auto from = w.begin() + (o * shape.in + first) * shape.taps();
    c.w.insert(c.w.end(), from, from + count * shape.taps());
  }
  return c;
}

ConvWeights ConvWeights::padded_outputs(int64_t count) const {
  MS_CHECK(count >= shape.out);
  ConvWeights c = *this;
  c.shape.out = count;
  c.w.resize(at(c.shape.weights()));
  if (!bias.empty()) c.bias.resize(at(count));
  return c;
}

ConvWeights ConvWeights::padded_inputs(int64_t count) const {
  MS_CHECK(count >= shape.in);
  ConvWeights c{shape, {}, bias};
  c.shape.in = count;
  const int64_t each = shape.in * shape.taps();
  for (int64_t o = 0; o < shape.out; ++o) {
    c.w.insert(c.w.end(), w.begin() + o * each, w.begin() + (o + 1) * each);
    c.w.resize(c.w.size() + at((count - shape.in) * shape.taps()));
  }
  return c;
}

ConvWeights stacked(const ConvWeights& a, const ConvWeights& b) {
  MS_CHECK(a.shape.in == b.shape.in && a.shape.kh == b.shape.kh && a.shape.kw == b.shape.kw && a.bias.empty() == b.bias.empty());
  ConvWeights c = a;
  c.shape.out += b.shape.out;
  c.w.insert(c.w.end(), b.w.begin(), b.w.end());
  c.bias.insert(c.bias.end(), b.bias.begin(), b.bias.end());
  return c;
}

ConvWeights of_two_frames(const ConvWeights& a, const ConvWeights& b) {
  const ConvShape &s = a.shape, &t = b.shape;
  MS_CHECK(s.out == t.out && s.in == t.in && s.kh == t.kh && s.kw == t.kw && s.kt == 1 && t.kt == 1);
  ConvWeights c{s, {}, a.bias};
  c.shape.kt = 2;
  const int64_t taps = s.taps();
  for (int64_t i = 0; i < s.out * s.in; ++i)
    for (const ConvWeights* from : {&a, &b}) c.w.insert(c.w.end(), from->w.begin() + i * taps, from->w.begin() + (i + 1) * taps);
  return c;
}

ConvWeights over_blocks(const ConvWeights& a) {
  const int64_t k = a.shape.kh, blocks = (k + 1) / 2;
  MS_CHECK(k % 2 == 1 && a.shape.kw == k && blocks % 2 == 0, "padding k/2 must be odd: blocks begin one pixel before it");
  ConvWeights c{a.shape, {}, a.bias};
  c.shape.in = 4 * a.shape.in;
  c.shape.kh = c.shape.kw = blocks;
  c.w.resize(at(c.shape.weights()));
  for (int64_t o = 0; o < a.shape.out; ++o)
    for (int64_t i = 0; i < a.shape.in; ++i)
      for (int64_t y = 0; y < k; ++y)
        for (int64_t x = 0; x < k; ++x) {
          const int64_t by = y + 1, bx = x + 1, channel = (i * 2 + bx % 2) * 2 + by % 2;
          c.w[at(((o * c.shape.in + channel) * blocks + by / 2) * blocks + bx / 2)] = a.w[at(((o * a.shape.in + i) * k + y) * k + x)];
        }
  return c;
}

ConvWeights over_rows(const ConvWeights& a) {
  ConvWeights c{a.shape, {}, a.bias};
  const int64_t kh = a.shape.kh, kw = a.shape.kw;
  c.shape.in = a.shape.in * kw;
  c.shape.kw = 1;
  c.w.resize(at(c.shape.weights()));
  for (int64_t o = 0; o < a.shape.out; ++o)
    for (int64_t i = 0; i < a.shape.in; ++i)
      for (int64_t y = 0; y < kh; ++y)
        for (int64_t x = 0; x < kw; ++x)
          c.w[at((o * c.shape.in + x * a.shape.in + i) * kh + y)] = a.w[at(((o * a.shape.in + i) * kh + y) * kw + x)];
  return c;
}

FrameConvolution::FrameConvolution(const Place& place, const ConvWeights& weights, std::vector<float> slope, int64_t stride)
    : shape_(weights.shape),
      stride_(stride),
      dy_(-(shape_.kh / 2)),
      dx_(-(shape_.kw / 2)),
      packed_(place, DType::kF32, {conv_packed_bytes(shape_, DType::kF32) / 4}) {
  MS_CHECK(static_cast<int64_t>(weights.w.size()) == shape_.weights());
  conv_pack(place.stream(), packed_.f32(), PlacedInput(place, weights.w.data(), shape_.weights() * 4).f32(), shape_, DType::kF32);
  if (!weights.bias.empty()) bias_ = panel_vector(place, weights.bias, shape_.out);
  if (slope.size() == 1) slope.resize(at(shape_.out), slope[0]);
  MS_CHECK(slope.empty() || static_cast<int64_t>(slope.size()) == shape_.out);
  if (!slope.empty()) slope_ = panel_vector(place, slope, shape_.out);
  place.finish();  // the weights may go
}

FrameConv FrameConvolution::call(Frame& out, const Frame& in, const AddedFrames& added) const {
  FrameConv c;
  c.shape = shape_;
  c.packed = packed_.f32();
  c.in = in.layout();
  c.stride = stride_;
  c.dy = dy_;
  c.dx = dx_;
  MS_CHECK(in.layout().border >= std::max(shape_.kh, shape_.kw) / 2, "the border is part of what is read");
  c.rows = out.layout().height / step_;
  c.columns = out.layout().width / step_;
  c.finish.out = out.layout();
  c.finish.step = step_;
  c.finish.y = y_;
  c.finish.x = x_;
  c.finish.bias = bias_.empty() ? nullptr : bias_.f32();
  c.finish.slope = slope_.empty() ? nullptr : slope_.f32();
  for (const Frame* r : {added.residual, added.residual2})
    MS_CHECK(!r || (r->layout().row() == out.layout().row() && r->layout().border == out.layout().border && r->layout().height == out.layout().height));
  c.finish.residual = added.residual ? added.residual->data() : nullptr;
  c.finish.residual2 = added.residual2 ? added.residual2->data() : nullptr;
  c.finish.raw = out.data();
  return c;
}

void FrameConvolution::operator()(const Place& place, Frame& out, const Frame& in, const AddedFrames& added) const {
  FrameConv c = call(out, in, added);
  c.frames[0] = in.data();
  frame_conv(place.stream(), c);
}

void FrameConvolution::operator()(const Place& place, Frame& out, const Frame& first, const Frame& second, const AddedFrames& added) const {
  FrameConv c = call(out, first, added);
  MS_CHECK(first.layout().row() == second.layout().row() && first.layout().border == second.layout().border && shape_.kt == 2);
  c.frames[0] = first.data();
  c.frames[1] = second.data();
  frame_conv(place.stream(), c);
}

TransposedConvolution::TransposedConvolution(const Place& place, const NetworkWeights& weights, const std::string& name) {
  const HostTensor w = weights.read(name + ".weight"), b = weights.read(name + ".bias");
  const int64_t in = w.shape()[0], out = w.shape()[1];
  for (int64_t phase = 0; phase < 4; ++phase) {
    const int64_t down = phase / 2, across = phase % 2;
    ConvWeights c{{.in = in, .out = out, .kt = 1, .kh = 2, .kw = 2}, {}, {b.f32(), b.f32() + out}};
    // Result 2y + a takes tap a + 1 − 2(i − y) of input row i: rows y − 1 + a and y + a.
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i)
        for (int64_t y = 0; y < 2; ++y)
          for (int64_t x = 0; x < 2; ++x) c.w.push_back(w.f32()[((i * out + o) * 4 + (3 - down - 2 * y)) * 4 + (3 - across - 2 * x)]);
    FrameConvolution& f = phases_.emplace_back(place, c);
    f.dy_ = down - 1;
    f.dx_ = across - 1;
    f.step_ = 2;
    f.y_ = down;
    f.x_ = across;
  }
}

void TransposedConvolution::operator()(const Place& place, Frame& out, const Frame& in) const {
  for (const FrameConvolution& f : phases_) f(place, out, in);
}

int64_t width_of(const NetworkWeights& weights, const std::string& name, size_t rank, size_t axis) {
  const Shape& s = weights.shape(name);
  if (s.size() != rank || s[axis] < 1 || s[axis] > 16384)
    throw Error(fmt::format("{}: \"{}\" is {}: not of this network", weights.path(), name, to_string(s)), "use the published file, with its names as they are");
  return s[axis];
}

}  // namespace megaslide
