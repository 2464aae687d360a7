#include "vision/amt_network.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/flow/interpolation.h"

namespace megaslide {
namespace {

constexpr int64_t kFlowTaps = 7;
constexpr float kLeak = 0.1F;

std::vector<float> leaky() { return {kLeak}; }

std::string decoder_name(int stage) { return fmt::format("decoder{}.convblock.", stage); }
std::string update_name(int stage) { return fmt::format("update{}.", stage); }

std::vector<float> slopes(const NetworkWeights& w, const std::string& name) {
  const HostTensor s = w.read(name);
  return {s.f32(), s.f32() + s.elements()};
}

// The names that tell shapes, and what each convolution is.
class Expected {
 public:
  explicit Expected(const NetworkWeights& w) : w_(w) {}
  int64_t out_of(const std::string& name) const { return width_of(w_, name + ".weight"); }
  void convolution(const std::string& name, int64_t out, int64_t in, int64_t k) {
    shapes[name + ".weight"] = {out, in, k, k};
    shapes[name + ".bias"] = {out};
  }
  void prelu_convolution(const std::string& name, int64_t out, int64_t in) {
    convolution(name + ".0", out, in, 3);
    shapes[name + ".1.weight"] = {out};
  }
  void decoder(int stage, int64_t in, int64_t out) {
    const std::string p = decoder_name(stage);
    const int64_t wide = out_of(p + "0.0"), skip = out_of(p + "1.conv2.0");
    if (skip > wide)
      throw Error(fmt::format("{}: \"{}1.conv2.0.weight\" gives {} channels of {}", w_.path(), p, skip, wide), "use the published file, with its names as they are");
    prelu_convolution(p + "0", wide, in);
    for (int i = 1; i <= 4; ++i) prelu_convolution(fmt::format("{}1.conv{}", p, i), i % 2 == 1 ? wide : skip, i % 2 == 1 ? wide : skip);
    convolution(p + "1.conv5", wide, wide, 3);
    shapes[p + "1.prelu.weight"] = {wide};
    shapes[p + "2.weight"] = {wide, out, 4, 4};
    shapes[p + "2.bias"] = {out};
  }
  void update(int stage, int64_t feature) {
    const std::string p = update_name(stage);
    const int64_t correlation = out_of(p + "convc1"), flow1 = out_of(p + "convf1"), flow2 = out_of(p + "convf2"), motion = out_of(p + "conv");
    const int64_t hidden = out_of(p + "gru.0");
    convolution(p + "convc1", correlation, kAmtCorrelations, 1);
    convolution(p + "convf1", flow1, kAmtFlows, kFlowTaps);
    convolution(p + "convf2", flow2, flow1, 3);
    convolution(p + "conv", motion, correlation + flow2, 3);
    convolution(p + "gru.0", hidden, motion + kAmtFlows + feature, 3);
    convolution(p + "gru.2", hidden, hidden, 3);
    for (const char* head : {"feat_head", "flow_head"}) {
      convolution(fmt::format("{}{}.0", p, head), hidden, hidden, 3);
      convolution(fmt::format("{}{}.2", p, head), head[1] == 'e' ? feature : kAmtFlows, hidden, 3);
    }
  }

  std::map<std::string, Shape> shapes;
  std::vector<std::string> ignored;

 private:
  const NetworkWeights& w_;
};

}  // namespace

AmtWidths require_amt(const NetworkWeights& w) {
  Expected e(w);
  AmtWidths n{};
  n.features = e.out_of("feat_encoder.conv2");
  for (size_t i = 0; i < 4; ++i) n.channels[i] = e.out_of(fmt::format("encoder.pyramid{}.0.0", i + 1));
  n.candidates = width_of(w, "comb_block.0.weight", 4, 1) / 3;
  const auto [c1, c2, c3, c4] = n.channels;
  ResidualEncoder::expect(w, "feat_encoder.", EncoderNorm::kInstance, e.shapes, e.ignored);
  e.convolution("feat_encoder.conv2", n.features, e.out_of("feat_encoder.layer3.1.conv3"), 1);
  for (size_t i = 0; i < 4; ++i) {
    e.prelu_convolution(fmt::format("encoder.pyramid{}.0", i + 1), n.channels[i], i == 0 ? 3 : n.channels[i - 1]);
    e.prelu_convolution(fmt::format("encoder.pyramid{}.1", i + 1), n.channels[i], n.channels[i]);
  }
  e.decoder(4, 2 * c4 + 1, kAmtFlows + c3);
  e.decoder(3, 3 * c3 + kAmtFlows, kAmtFlows + c2);
  e.decoder(2, 3 * c2 + kAmtFlows, kAmtFlows + c1);
  e.decoder(1, 3 * c1 + kAmtFlows, 8 * n.candidates);
  e.update(4, c3);
  e.update(3, c2);
  e.update(2, c1);
  const int64_t comb = e.out_of("comb_block.0");
  e.convolution("comb_block.0", comb, 3 * n.candidates, 3);
  e.shapes["comb_block.1.weight"] = {comb};
  e.convolution("comb_block.2", 3, comb, 3);
  w.require(e.shapes, e.ignored);
  return n;
}

FrameConvolution prelu_convolution(const Place& place, const NetworkWeights& w, const std::string& name, int64_t stride) {
  return {place, ConvWeights::read(w, name + ".0"), slopes(w, name + ".1.weight"), stride};
}

AmtPyramid::AmtPyramid(const Place& place, const NetworkWeights& w) {
  for (int i = 1; i <= 4; ++i) {
    const std::string level = fmt::format("encoder.pyramid{}.", i);
    down_.push_back(i > 1 ? prelu_convolution(place, w, level + "0", 2)
                          : FrameConvolution(place, over_blocks(ConvWeights::read(w, level + "0.0")), slopes(w, level + "0.1.weight")));
    same_.push_back(prelu_convolution(place, w, level + "1"));
  }
}

std::array<Frame, 4> AmtPyramid::forward(const Place& place, const Frame& blocks) const {
  std::array<Frame, 4> levels;
  for (size_t i = 0; i < 4; ++i) {
    const Frame& from = i == 0 ? blocks : levels[i - 1];
    const int64_t stride = down_[i].stride(), h = from.layout().height / stride, w = from.layout().width / stride;
    Frame between(place, h, w, down_[i].out_channels());
    down_[i](place, between, from);
    levels[i] = Frame(place, h, w, same_[i].out_channels());
    same_[i](place, levels[i], between);
  }
  return levels;
}

AmtDecoder::AmtDecoder(const Place& place, const NetworkWeights& w, int stage) {
  const std::string p = decoder_name(stage);
  in_ = w.shape(p + "0.0.weight")[1];
  skip_ = w.shape(p + "1.conv2.0.weight")[0];
  convolutions_.push_back(prelu_convolution(place, w, p + "0"));
  for (int i = 1; i <= 4; ++i) convolutions_.push_back(prelu_convolution(place, w, fmt::format("{}1.conv{}", p, i)));
  convolutions_.emplace_back(place, ConvWeights::read(w, p + "1.conv5"), slopes(w, p + "1.prelu.weight"));
  up_ = TransposedConvolution(place, w, p + "2");
}

Frame AmtDecoder::forward(const Place& place, const Frame& in) const {
  const int64_t h = in.layout().height, w = in.layout().width, wide = convolutions_[0].out_channels();
  Frame y(place, h, w, wide), a(place, h, w, wide), b(place, h, w, wide), tail(place, h, w, skip_), side(place, h, w, skip_);
  convolutions_[0](place, y, in);
  // The last channels of a map pass through one convolution more.
  const auto with_tail = [&](Frame& to, const Frame& from, size_t i) {
    convolutions_[i](place, to, from);
    frame_channels(place.stream(), tail.data(), tail.layout(), to.data(), to.layout(), {.from = wide - skip_, .count = skip_});
    convolutions_[i + 1](place, side, tail);
    frame_channels(place.stream(), to.data(), to.layout(), side.data(), side.layout(), {.to = wide - skip_, .count = skip_});
  };
  with_tail(a, y, 1);
  with_tail(b, a, 3);
  convolutions_[5](place, y, b, {.residual = &y});
  Frame out(place, 2 * h, 2 * w, up_.out_channels(), 0);
  up_(place, out, y);
  return out;
}

AmtUpdate::AmtUpdate(const Place& place, const NetworkWeights& w, int stage) {
  const auto read = [&](const char* name) { return ConvWeights::read(w, update_name(stage) + name); };
  const auto without_bias = [](ConvWeights c) {
    c.drop_bias();
    return c;
  };
  correlation_ = FrameConvolution(place, read("convc1"), leaky());
  flow1_ = FrameConvolution(place, over_rows(read("convf1")), leaky());
  flow2_ = FrameConvolution(place, read("convf2"), leaky());
  // conv reads two maps, gru.0 three, of which the flows ride behind the first, as they are.
  const int64_t correlation = correlation_.out_channels(), side = flow2_.out_channels();
  motion_ = read("conv").shape.out;
  const ConvWeights motion = read("conv").padded_outputs(motion_ + kAmtFlows);
  std::vector<float> slope(static_cast<size_t>(motion_), kLeak);
  slope.resize(slope.size() + kAmtFlows, 1.0F);
  motion_correlation_ = FrameConvolution(place, without_bias(motion.inputs(0, correlation)));
  motion_flow_ = FrameConvolution(place, motion.inputs(correlation, side), slope);
  const ConvWeights mix = read("gru.0");
  mix_motion_ = FrameConvolution(place, without_bias(mix.inputs(0, motion_ + kAmtFlows)));
  mix_feature_ = FrameConvolution(place, mix.inputs(motion_ + kAmtFlows, mix.shape.in - motion_ - kAmtFlows), leaky());
  mix_ = FrameConvolution(place, read("gru.2"));
  feature1_ = FrameConvolution(place, read("feat_head.0"), leaky());
  feature2_ = FrameConvolution(place, read("feat_head.2"));
  head1_ = FrameConvolution(place, read("flow_head.0"), leaky());
  head2_ = FrameConvolution(place, read("flow_head.2"));
}

void AmtUpdate::forward(const Place& place, const Frame& correlations, Frame& small, Frame& feature, Frame& flows, int64_t d) const {
  const FrameLayout& l = correlations.layout();
  const auto frame = [&](int64_t channels, int64_t border = 1) { return Frame(place, l.height, l.width, channels, border); };
  const auto resize = [&](Frame& out, const Frame& in, FrameScaling s) { frame_resize(place.stream(), out.data(), out.layout(), in.data(), in.layout(), s); };
  Frame motion = frame(motion_ + kAmtFlows), mixed = frame(mix_.out_channels());
  {
    Frame rows = frame(kAmtFlows * kFlowTaps, kFlowTaps / 2), a = frame(correlation_.out_channels()), b1 = frame(flow1_.out_channels()),
          b = frame(flow2_.out_channels()), beside = frame(motion_ + kAmtFlows), net = frame(feature.layout().channels);
    FlowStep s;
    s.flow = small.data();
    s.channels = kAmtFlows, s.pitch = small.layout().stored();
    s.rows = rows.data(), s.rows_layout = rows.layout(), s.taps = kFlowTaps;
    s.beside = beside.data(), s.beside_layout = beside.layout(), s.first = motion_;
    flow_advance(place.stream(), s);
    correlation_(place, a, correlations);
    flow1_(place, b1, rows);
    flow2_(place, b, b1);
    motion_correlation_(place, motion, a, {.residual = &beside});
    motion_flow_(place, motion, b, {.residual = &motion});
    resize(net, feature, {.down = d});
    Frame hidden = frame(mix_motion_.out_channels());
    mix_motion_(place, hidden, motion);
    mix_feature_(place, hidden, net, {.residual = &hidden});
    mix_(place, mixed, hidden);
  }
  const auto change = [&](Frame& of, const FrameConvolution& first, const FrameConvolution& second, float factor) {
    Frame between = frame(first.out_channels()), delta = frame(second.out_channels());
    first(place, between, mixed);
    second(place, delta, between);
    resize(of, delta, {.up = d, .factor = factor, .add = true});
  };
  change(feature, feature1_, feature2_, 1);
  change(flows, head1_, head2_, static_cast<float>(d));
}

}  // namespace megaslide
