#include "vision/amt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "kernels/flow/interpolation.h"
#include "vision/amt_network.h"

namespace megaslide {
namespace {

// Rows that the last stage reaches beyond those it gives: six 3×3, the transposed 4×4 and the two 3×3 behind it.
constexpr int64_t kHalo = 8;

// Mean of all values of both pictures with their padding, on a scale of 0 … 1.
double mean_value(const PictureCells& p, const uint8_t* const (&rgb)[2], int64_t height, int64_t width) {
  uint64_t sum = 0;
  for (const uint8_t* bytes : rgb)
    for (int64_t y = 0; y < height; ++y) {
      const uint8_t* row = bytes + 3 * p.width * std::clamp<int64_t>(y - p.top, 0, p.height - 1);
      for (int64_t x = 0; x < width; ++x) {
        const uint8_t* pixel = row + 3 * std::clamp<int64_t>(x - p.left, 0, p.width - 1);
        sum += uint64_t{pixel[0]} + pixel[1] + pixel[2];
      }
    }
  return static_cast<double>(sum) / (255.0 * 6.0 * static_cast<double>(height * width));
}

}  // namespace

struct Amt::Weights {
  AmtWidths n;
  int64_t strip_rows;
  ResidualEncoder encoder;
  FrameConvolution features;
  AmtPyramid pyramid;
  std::vector<AmtDecoder> decoders;  // stages 4, 3, 2, 1
  std::vector<AmtUpdate> updates;    // stages 4, 3, 2
  FrameConvolution comb1, comb2;

  Weights(const Place& place, const NetworkWeights& w, const AmtWidths& widths, int64_t rows)
      : n(widths),
        strip_rows(rows),
        encoder(place, w, "feat_encoder.", EncoderNorm::kInstance),
        features(place, ConvWeights::read(w, "feat_encoder.conv2")),
        pyramid(place, w) {
    for (int stage = 4; stage >= 1; --stage) decoders.emplace_back(place, w, stage);
    for (int stage = 4; stage >= 2; --stage) updates.emplace_back(place, w, stage);
    const HostTensor slope = w.read("comb_block.1.weight");
    comb1 = FrameConvolution(place, ConvWeights::read(w, "comb_block.0"), {slope.f32(), slope.f32() + slope.elements()});
    comb2 = FrameConvolution(place, ConvWeights::read(w, "comb_block.2"));
  }
};

// One pair of pictures.
class Amt::Pass {
 public:
  Pass(const Weights& w, const Place& place, const uint8_t* rgb0, const uint8_t* rgb1, int64_t width, int64_t height, const AmtObserver* observer)
      : w_(w), place_(place), observer_(observer), bytes_{{place, rgb0, 3 * width * height}, {place, rgb1, 3 * width * height}} {
    const ReplicatePadding p = replicate_padding(width, height, kAmtUnit);
    height_ = height + p.top + p.bottom;
    width_ = width + p.left + p.right;
    for (size_t i = 0; i < 2; ++i)
      pictures_[i] = {.rgb = bytes_[i].u8(), .width = width, .height = height, .left = p.left, .top = p.top, .block = 2, .scale = 1.0F / 255};
    const auto mean = static_cast<float>(mean_value(pictures_[0], {rgb0, rgb1}, height_, width_));
    for (size_t i = 0; i < 2; ++i) {
      pictures_[i].shift = -mean;
      encode(i);
    }
  }

  HostTensor run() {
    first_stage();
    for (int stage = 3; stage >= 2; --stage) middle_stage(stage);
    PlacedTensor out(place_, DType::kF32, {3, height_, width_});
    const int64_t half = height_ / 2, strips = (half + w_.strip_rows - 1) / w_.strip_rows;
    for (int64_t i = 0; i < strips; ++i) last_stage(out, half * i / strips, half * (i + 1) / strips);
    return out.to_host(place_);
  }

 private:
  void encode(size_t i) {
    Frame blocks(place_, height_ / 2, width_ / 2, 12, 2);
    picture_frame(place_.stream(), blocks.data(), blocks.layout(), pictures_[i]);
    pyramid_[i] = w_.pyramid.forward(place_, blocks);
    std::array<Frame, kFlowLevels>& f = features_[i];
    f[0] = Frame(place_, height_ / 8, width_ / 8, w_.n.features, 0);
    w_.features(place_, f[0], w_.encoder.forward(place_, blocks));
    for (size_t l = 1; l < f.size(); ++l) {
      f[l] = Frame(place_, f[l - 1].layout().height / 2, f[l - 1].layout().width / 2, w_.n.features, 0);
      frame_pool(place_.stream(), f[l].data(), f[l].layout(), f[l - 1].data(), f[l - 1].layout());
    }
    observe(i == 0 ? "fmap0" : "fmap1", f[0]);
  }

  // The result of a decoder: flows, then the feature.
  void split(const Frame& decoded, int stage) {
    const FrameLayout& l = decoded.layout();
    const int64_t channels = l.channels - kAmtFlows;
    Frame flows(place_, l.height, l.width, kAmtFlows, 0);
    if (stage < 4) frame_resize(place_.stream(), flows.data(), flows.layout(), flows_.data(), flows_.layout(), {.up = 2, .factor = 2});
    frame_channels(place_.stream(), flows.data(), flows.layout(), decoded.data(), l, {.count = kAmtFlows, .add = true});
    flows_ = std::move(flows);
    feature_ = Frame(place_, l.height, l.width, channels, 0);
    frame_channels(place_.stream(), feature_.data(), feature_.layout(), decoded.data(), l, {.from = kAmtFlows, .count = channels});
    update(stage);
  }

  void update(int stage) {
    const int64_t d = int64_t{1} << (4 - stage);
    Frame small(place_, height_ / 8, width_ / 8, kAmtFlows, 0), correlations(place_, height_ / 8, width_ / 8, kAmtCorrelations, 0);
    frame_resize(place_.stream(), small.data(), small.layout(), flows_.data(), flows_.layout(), {.down = d, .factor = 1.0F / static_cast<float>(d)});
    for (size_t i = 0; i < 2; ++i) {
      // From picture i into the other, along the flow to the other at twice its length: from t = ½ to a whole step.
      CorrelationLookup c;
      c.from = features_[i][0].data(), c.from_layout = features_[i][0].layout();
      for (size_t l = 0; l < kFlowLevels; ++l) c.levels[l] = features_[1 - i][l].data(), c.level_layouts[l] = features_[1 - i][l].layout();
      c.flow = small.data(), c.flow_pitch = small.layout().stored(), c.flow_first = i == 0 ? 2 : 0;
      c.flow_scale = 2;
      c.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(w_.n.features)));
      c.radius = kAmtRadius;
      c.first = static_cast<int64_t>(i) * kAmtCorrelations / 2;
      correlation_lookup(place_.stream(), correlations.data(), correlations.layout(), c);
    }
    observe(fmt::format("corr_{}", stage), correlations);
    w_.updates[static_cast<size_t>(4 - stage)].forward(place_, correlations, small, feature_, flows_, d);
    observe(fmt::format("flow_{}", stage), flows_);
    observe(fmt::format("feature_{}", stage), feature_);
  }

  void first_stage() {
    const int64_t c = w_.n.channels[3], h = height_ / 16, v = width_ / 16;
    Frame in(place_, h, v, 2 * c + 1);
    for (size_t i = 0; i < 2; ++i) append(in, static_cast<int64_t>(i) * c, pyramid_[i][3], 0);
    append(in, 2 * c, Frame::constant(place_, h, v, 0.5F), 0);  // the time of the frame between
    split(w_.decoders[0].forward(place_, in), 4);
  }

  void middle_stage(int stage) {
    const Frame in = gathered(stage, 0, height_ >> stage);
    split(w_.decoders[static_cast<size_t>(4 - stage)].forward(place_, in), stage);
  }

  void append(Frame& to, int64_t at, const Frame& from, int64_t first_row) {
    frame_channels(place_.stream(), to.data(), to.layout(), from.data(), from.layout(), {.to = at, .count = from.layout().channels, .first_row = first_row});
  }

  // Rows of a decoder's input: the feature, both pictures' maps where the flows point, the flows.
  Frame gathered(int stage, int64_t first_row, int64_t rows) {
    const auto level = static_cast<size_t>(stage - 1);
    const int64_t c = w_.n.channels[level];
    Frame in(place_, rows, width_ >> stage, 3 * c + kAmtFlows);
    append(in, 0, feature_, first_row);
    for (size_t i = 0; i < 2; ++i) {
      const Frame& map = pyramid_[i][level];
      const auto k = static_cast<int64_t>(i);
      frame_warp(place_.stream(), in.data(), in.layout(), map.data(), map.layout(), flows_.data(), flows_.layout(),
                 {.to = (1 + k) * c, .from = 2 * k, .first_row = first_row});
    }
    append(in, 3 * c, flows_, first_row);
    return in;
  }

  // Rows [2·begin, 2·end) of the prediction.
  void last_stage(PlacedTensor& out, int64_t begin, int64_t end) {
    const int64_t first = std::max<int64_t>(0, begin - kHalo), rows = std::min(height_ / 2, end + kHalo) - first;
    const Frame decoded = w_.decoders[3].forward(place_, gathered(1, first, rows));
    Frame candidates(place_, 2 * rows, width_, 3 * w_.n.candidates);
    {
      Frame base(place_, 2 * rows, width_, kAmtFlows, 0);
      frame_resize(place_.stream(), base.data(), base.layout(), flows_.data(), flows_.layout(), {.up = 2, .factor = 2, .first_row = 2 * first});
      CandidateBlend b;
      b.first = pictures_[0], b.second = pictures_[1];
      b.height = height_, b.width = width_;
      b.decoded = decoded.data(), b.decoded_layout = decoded.layout();
      b.base = base.data(), b.base_layout = base.layout();
      b.count = w_.n.candidates;
      b.first_row = 2 * first;
      blend_candidates(place_.stream(), candidates.data(), candidates.layout(), b);
    }
    Frame between(place_, 2 * rows, width_, w_.comb1.out_channels()), correction(place_, 2 * rows, width_, 3, 0);
    w_.comb1(place_, between, candidates);
    w_.comb2(place_, correction, between);
    predict_rows(place_.stream(), out.f32(), candidates.data(), candidates.layout(), correction.data(), correction.layout(),
                 {.height = height_, .width = width_, .first = 2 * begin, .rows = 2 * (end - begin), .first_row = 2 * first, .count = w_.n.candidates});
  }

  void observe(const std::string& name, const Frame& map) const {
    if (observer_) (*observer_)(name, map.planes(place_));
  }

  const Weights& w_;
  Place place_;
  const AmtObserver* observer_;
  int64_t height_, width_;
  PlacedInput bytes_[2];
  PictureCells pictures_[2];
  std::array<Frame, 4> pyramid_[2];
  std::array<Frame, kFlowLevels> features_[2];
  Frame flows_, feature_;
};

std::string amt_not_applicable(int64_t width, int64_t height) {
  const int64_t least = kAmtMinPadded - kAmtUnit + 1;
  if (width >= least && height >= least) return {};
  return fmt::format("n/a: needs sides of at least {} pixels, not {}x{}", least, width, height);
}

Amt::Amt(const Place& place, const NetworkWeights& weights, int64_t strip_rows) {
  MS_CHECK(strip_rows >= 1);
  const AmtWidths n = require_amt(weights);
  weights_ = std::make_unique<const Weights>(place, weights, n, strip_rows);
}
Amt::~Amt() = default;
Amt::Amt(Amt&&) noexcept = default;

HostTensor Amt::predict(const Place& place, const uint8_t* rgb0, const uint8_t* rgb1, int64_t width, int64_t height, const AmtObserver* observer) const {
  const std::string reason = amt_not_applicable(width, height);
  if (!reason.empty()) throw Error(reason, "smaller pictures have no correlations of AMT's");
  return Pass(*weights_, place, rgb0, rgb1, width, height, observer).run();
}

std::vector<uint8_t> Amt::between(const Place& place, const uint8_t* rgb0, const uint8_t* rgb1, int64_t width, int64_t height) const {
  const HostTensor p = predict(place, rgb0, rgb1, width, height);
  const int64_t padded_height = p.shape()[1], padded_width = p.shape()[2];
  const ReplicatePadding pad = replicate_padding(width, height, kAmtUnit);
  std::vector<uint8_t> out(static_cast<size_t>(3 * width * height));
  bool numbers = true;
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < 3; ++c) {
        const float v = p.f32()[(c * padded_height + y + pad.top) * padded_width + x + pad.left];
        numbers = numbers && !std::isnan(v);
        out[static_cast<size_t>((y * width + x) * 3 + c)] = std::isnan(v) ? uint8_t{0} : static_cast<uint8_t>(v * 255.0F);
      }
  if (!numbers) throw Error("the predicted frame holds values that are not numbers", "check the weights of AMT-S: the published file gives none");
  return out;
}

double mean_byte_difference(const uint8_t* a, const uint8_t* b, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<uint64_t>(std::abs(int{a[i]} - int{b[i]}));
  return static_cast<double>(sum) / static_cast<double>(n);
}

double motion_smoothness(const std::vector<double>& differences) {
  MS_CHECK(!differences.empty());
  double sum = 0;
  for (const double d : differences) sum += d;
  return (255.0 - sum / static_cast<double>(differences.size())) / 255.0;
}

}  // namespace megaslide
