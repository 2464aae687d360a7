#include "vision/raft.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "base/error.h"
#include "kernels/flow/flow.h"
#include "vision/residual_encoder.h"

namespace megaslide {
namespace {

constexpr int64_t kRadius = 4, kCorrelations = kFlowLevels * (2 * kRadius + 1) * (2 * kRadius + 1);
constexpr int64_t kUpsampling = 9 * 8 * 8;
constexpr int64_t kFlowTaps = 7;
std::vector<float> relu() { return {0}; }

// Widths that the file's shapes tell.
struct Widths {
  int64_t features, hidden, context, correlation1, correlation2, flow1, flow2, motion, head, mask;
};

Widths widths_of(const NetworkWeights& w) {
  const auto of = [&](const char* name) { return width_of(w, name + std::string(".weight")); };
  Widths n{};
  n.features = of("fnet.conv2");
  n.hidden = of("update_block.gru.convz1");
  n.context = of("cnet.conv2") - n.hidden;
  n.correlation1 = of("update_block.encoder.convc1");
  n.correlation2 = of("update_block.encoder.convc2");
  n.flow1 = of("update_block.encoder.convf1");
  n.flow2 = of("update_block.encoder.convf2");
  n.motion = of("update_block.encoder.conv");
  n.head = of("update_block.flow_head.conv1");
  n.mask = of("update_block.mask.0");
  if (n.context < 1)
    throw Error(fmt::format("{}: \"cnet.conv2.weight\" gives {} channels, not more than the {} of \"update_block.gru.convz1.weight\"", w.path(),
                            n.context + n.hidden, n.hidden),
                "use the published file, with its names as they are");
  return n;
}

void require(const NetworkWeights& w, const Widths& n) {
  std::map<std::string, Shape> expected;
  std::vector<std::string> ignored;
  const auto convolution = [&](const std::string& name, int64_t out, int64_t in, int64_t kh, int64_t kw) {
    expected[name + ".weight"] = {out, in, kh, kw};
    expected[name + ".bias"] = {out};
  };
  ResidualEncoder::expect(w, "fnet.", EncoderNorm::kInstance, expected, ignored);
  ResidualEncoder::expect(w, "cnet.", EncoderNorm::kBatch, expected, ignored);
  convolution("fnet.conv2", n.features, width_of(w, "fnet.layer3.1.conv2.weight"), 1, 1);
  convolution("cnet.conv2", n.hidden + n.context, width_of(w, "cnet.layer3.1.conv2.weight"), 1, 1);
  const std::string u = "update_block.";
  convolution(u + "encoder.convc1", n.correlation1, kCorrelations, 1, 1);
  convolution(u + "encoder.convc2", n.correlation2, n.correlation1, 3, 3);
  convolution(u + "encoder.convf1", n.flow1, 2, kFlowTaps, kFlowTaps);
  convolution(u + "encoder.convf2", n.flow2, n.flow1, 3, 3);
  convolution(u + "encoder.conv", n.motion, n.correlation2 + n.flow2, 3, 3);
  for (const char* gate : {"z", "r", "q"}) {
    const int64_t in = n.hidden + n.context + n.motion + 2;
    convolution(fmt::format("{}gru.conv{}1", u, gate), n.hidden, in, 1, 5);
    convolution(fmt::format("{}gru.conv{}2", u, gate), n.hidden, in, 5, 1);
  }
  convolution(u + "flow_head.conv1", n.head, n.hidden, 3, 3);
  convolution(u + "flow_head.conv2", 2, n.head, 3, 3);
  convolution(u + "mask.0", n.mask, n.hidden, 3, 3);
  convolution(u + "mask.2", kUpsampling, n.mask, 1, 1);
  w.require(expected, ignored);
}

// One pass of the GRU, with kernels along one axis. The state, its reset and the motion are frames of one width, the gates
// z and r lie side by side at that width. What the context adds never changes between iterations, so it is apart.
struct Gru {
  FrameConvolution gates, candidate;                  // of (state, motion) and (reset, motion)
  FrameConvolution context_gates, context_candidate;  // of the context, with the biases

  Gru(const Place& place, const NetworkWeights& w, const Widths& n, int64_t width, int axis) {
    const auto part = [&](const char* gate, int64_t first, int64_t count) {
      return ConvWeights::read(w, fmt::format("update_block.gru.conv{}{}", gate, axis)).inputs(first, count).padded_outputs(width);
    };
    const auto inner = [&](const char* gate) {
      ConvWeights c = of_two_frames(part(gate, 0, n.hidden).padded_inputs(width), part(gate, n.hidden + n.context, n.motion + 2).padded_inputs(width));
      c.drop_bias();
      return c;
    };
    const auto outer = [&](const char* gate) { return part(gate, n.hidden, n.context); };
    gates = FrameConvolution(place, stacked(inner("z"), inner("r")));
    candidate = FrameConvolution(place, inner("q"));
    context_gates = FrameConvolution(place, stacked(outer("z"), outer("r")));
    context_candidate = FrameConvolution(place, outer("q"));
  }
};

int64_t cells_up(int64_t channels) { return (channels + kConvPanel - 1) / kConvPanel * kConvPanel; }

}  // namespace

struct Raft::Weights {
  Widths n;
  int64_t width;  // of the state and the motion
  ResidualEncoder features, context;
  FrameConvolution features_out, hidden_out, context_out;
  FrameConvolution correlation1, correlation2, flow1, flow2, motion_correlation, motion_flow;
  std::vector<Gru> gru;
  FrameConvolution head1, head2, mask1, mask2;

  Weights(const Place& place, const NetworkWeights& w, const Widths& widths)
      : n(widths),
        width(cells_up(std::max(n.hidden, n.motion + 2))),
        features(place, w, "fnet.", EncoderNorm::kInstance),
        context(place, w, "cnet.", EncoderNorm::kBatch) {
    const auto read = [&](const char* name) { return ConvWeights::read(w, name); };
    features_out = FrameConvolution(place, read("fnet.conv2"));
    hidden_out = FrameConvolution(place, read("cnet.conv2").outputs(0, n.hidden).padded_outputs(width));
    context_out = FrameConvolution(place, read("cnet.conv2").outputs(n.hidden, n.context), relu());
    correlation1 = FrameConvolution(place, read("update_block.encoder.convc1"), relu());
    correlation2 = FrameConvolution(place, read("update_block.encoder.convc2"), relu());
    flow1 = FrameConvolution(place, over_rows(read("update_block.encoder.convf1")), relu());
    flow2 = FrameConvolution(place, read("update_block.encoder.convf2"), relu());
    const ConvWeights motion = read("update_block.encoder.conv").padded_outputs(width);
    ConvWeights first = motion.inputs(0, n.correlation2);
    first.drop_bias();
    motion_correlation = FrameConvolution(place, first);
    // The flow joins the motion as it is, behind its channels.
    std::vector<float> slope(static_cast<size_t>(width), 1.0F);
    std::fill_n(slope.begin(), n.motion, 0.0F);
    motion_flow = FrameConvolution(place, motion.inputs(n.correlation2, n.flow2), slope);
    for (int axis = 1; axis <= 2; ++axis) gru.emplace_back(place, w, n, width, axis);
    head1 = FrameConvolution(place, read("update_block.flow_head.conv1").padded_inputs(width), relu());
    head2 = FrameConvolution(place, read("update_block.flow_head.conv2"));
    mask1 = FrameConvolution(place, read("update_block.mask.0").padded_inputs(width), relu());
    ConvWeights mask = read("update_block.mask.2");
    for (std::vector<float>* values : {&mask.w, &mask.bias})
      for (float& v : *values) v *= 0.25F;
    mask2 = FrameConvolution(place, mask);
  }
};

// The iterations of one pair: frames of an eighth of the picture's sides.
class Raft::Pass {
 public:
  Pass(const Weights& w, const Place& place, const RaftFrame& a, const RaftFrame& b)
      : w_(w), place_(place), a_(a), b_(b), h_(a.height() / 8), v_(a.width() / 8) {
    state_ = frame(w.width, 2);
    reset_ = frame(w.width, 2);
    motion_ = frame(w.width, 2);
    flow_beside_ = frame(w.width, 2);
    gates_ = frame(2 * w.width, 0);
    candidate_ = frame(w.width, 0);
    flow_ = PlacedTensor(place, DType::kF32, {h_, v_, 2});
    start();
  }

  void iterate() {
    motion();
    for (size_t i = 0; i < 2; ++i) update(w_.gru[i], context_gates_[i], context_candidates_[i]);
    w_.head1(place_, head_, state_);
    w_.head2(place_, delta_, head_);
    advance(&delta_);
  }

  HostTensor upsampled() {
    Frame mask = frame(w_.n.mask, 0), logits = frame(kUpsampling, 0);
    w_.mask1(place_, mask, state_);
    w_.mask2(place_, logits, mask);
    PlacedTensor out(place_, DType::kF32, {2, 8 * h_, 8 * v_});
    convex_upsample(place_.stream(), out.f32(), logits.data(), logits.layout(), flow_.f32());
    return out.to_host(place_);
  }

 private:
  Frame frame(int64_t channels, int64_t border) const { return {place_, h_, v_, channels, border}; }

  void start() {
    {
      const Frame trunk = w_.context.forward(place_, a_.blocks_);
      Frame hidden = frame(w_.width, 0), context = frame(w_.n.context, 2);
      w_.hidden_out(place_, hidden, trunk);
      gru_update(place_.stream(), state_.data(), state_.layout(), nullptr, {}, hidden.data(), hidden.layout());
      w_.context_out(place_, context, trunk);
      for (size_t i = 0; i < 2; ++i) {
        context_gates_[i] = frame(2 * w_.width, 0);
        context_candidates_[i] = frame(w_.width, 0);
        w_.gru[i].context_gates(place_, context_gates_[i], context);
        w_.gru[i].context_candidate(place_, context_candidates_[i], context);
      }
    }
    correlations_ = frame(kCorrelations, 0);
    correlation1_ = frame(w_.n.correlation1, 1);
    correlation2_ = frame(w_.n.correlation2, 1);
    rows_ = frame(2 * kFlowTaps, kFlowTaps / 2);
    flow1_ = frame(w_.n.flow1, 1);
    flow2_ = frame(w_.n.flow2, 1);
    head_ = frame(w_.n.head, 1);
    delta_ = frame(2, 0);
    advance(nullptr);
  }

  void advance(const Frame* delta) {
    FlowStep s;
    s.flow = flow_.f32();
    if (delta) s.delta = delta->data(), s.delta_layout = delta->layout();
    s.rows = rows_.data();
    s.rows_layout = rows_.layout();
    s.taps = kFlowTaps;
    s.beside = flow_beside_.data();
    s.beside_layout = flow_beside_.layout();
    s.first = w_.n.motion;
    flow_advance(place_.stream(), s);
  }

  void motion() {
    CorrelationLookup c;
    c.from = a_.features().data();
    c.from_layout = a_.features().layout();
    for (int i = 0; i < kFlowLevels; ++i) {
      c.levels[i] = b_.features(i).data();
      c.level_layouts[i] = b_.features(i).layout();
    }
    c.flow = flow_.f32();
    c.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(w_.n.features)));
    c.radius = kRadius;
    correlation_lookup(place_.stream(), correlations_.data(), correlations_.layout(), c);
    w_.correlation1(place_, correlation1_, correlations_);
    w_.correlation2(place_, correlation2_, correlation1_);
    w_.flow1(place_, flow1_, rows_);
    w_.flow2(place_, flow2_, flow1_);
    w_.motion_correlation(place_, motion_, correlation2_, {.residual = &flow_beside_});
    w_.motion_flow(place_, motion_, flow2_, {.residual = &motion_});
  }

  void update(const Gru& g, const Frame& context_gates, const Frame& context_candidate) {
    g.gates(place_, gates_, state_, motion_, {.residual = &context_gates});
    gru_reset(place_.stream(), gates_.data(), gates_.layout(), reset_.data(), state_.data(), state_.layout());
    g.candidate(place_, candidate_, reset_, motion_, {.residual = &context_candidate});
    gru_update(place_.stream(), state_.data(), state_.layout(), gates_.data(), gates_.layout(), candidate_.data(), candidate_.layout());
  }

  const Weights& w_;
  Place place_;
  const RaftFrame &a_, &b_;
  int64_t h_, v_;
  Frame state_, reset_, motion_, flow_beside_, gates_, candidate_;
  std::array<Frame, 2> context_gates_, context_candidates_;
  Frame correlations_, correlation1_, correlation2_, rows_, flow1_, flow2_, head_, delta_;
  PlacedTensor flow_;
};

std::string raft_not_applicable(int64_t width, int64_t height) {
  const int64_t least = kRaftMinPadded - kRaftUnit + 1;
  if (width >= least && height >= least) return {};
  return fmt::format("n/a: needs sides of at least {} pixels, not {}x{}", least, width, height);
}

int64_t RaftFrame::bytes() const {
  int64_t bytes = blocks_.bytes();
  for (const Frame& f : levels_) bytes += f.bytes();
  return bytes;
}

Raft::Raft(const Place& place, const NetworkWeights& weights) {
  const Widths n = widths_of(weights);
  require(weights, n);
  weights_ = std::make_unique<const Weights>(place, weights, n);
}
Raft::~Raft() = default;
Raft::Raft(Raft&&) noexcept = default;

Raft Raft::open(const Place& place, const std::string& path) { return Raft(place, NetworkWeights::open(path, "module.")); }

RaftFrame Raft::frame(const Place& place, const uint8_t* rgb, int64_t width, int64_t height) const {
  const std::string reason = raft_not_applicable(width, height);
  if (!reason.empty()) throw Error(reason, "smaller pictures have no optical flow of RAFT's");
  const ReplicatePadding p = replicate_padding(width, height, kRaftUnit);
  const int64_t h = height + p.top + p.bottom, w = width + p.left + p.right;
  const PlacedInput pixels(place, rgb, 3 * width * height);
  RaftFrame out;
  out.blocks_ = Frame(place, h / 2, w / 2, 12, 2);
  picture_frame(place.stream(), out.blocks_.data(), out.blocks_.layout(),
                {.rgb = pixels.u8(), .width = width, .height = height, .left = p.left, .top = p.top, .block = 2, .scale = 2.0F / 255, .shift = -1});
  out.levels_[0] = Frame(place, h / 8, w / 8, weights_->n.features, 0);
  weights_->features_out(place, out.levels_[0], weights_->features.forward(place, out.blocks_));
  for (size_t i = 1; i < 4; ++i) {
    const FrameLayout& l = out.levels_[i - 1].layout();
    out.levels_[i] = Frame(place, l.height / 2, l.width / 2, l.channels, 0);
    frame_pool(place.stream(), out.levels_[i].data(), out.levels_[i].layout(), out.levels_[i - 1].data(), l);
  }
  place.finish();  // the caller's picture may go
  return out;
}

HostTensor Raft::flow(const Place& place, const RaftFrame& a, const RaftFrame& b, int iterations) const {
  if (a.width() != b.width() || a.height() != b.height())
    throw Error(fmt::format("a frame of {}x{} after one of {}x{}: flow needs frames of one size", b.width(), b.height(), a.width(), a.height()),
                "encode the video with one size");
  Pass pass(*weights_, place, a, b);
  for (int i = 0; i < iterations; ++i) pass.iterate();
  return pass.upsampled();
}

}  // namespace megaslide
