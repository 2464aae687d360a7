#include "vision/residual_encoder.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "kernels/flow/flow.h"

namespace megaslide {
namespace {

constexpr double kNormEps = 1e-5;
constexpr const char* kStatistics[] = {"weight", "bias", "running_mean", "running_var"};

// Where a norm's tensors lie. The shortcut's is stored under two names, of which a file may hold one.
std::vector<std::string> shortcut_norms(const NetworkWeights& w, const std::string& block) {
  std::vector<std::string> names;
  for (const char* name : {"downsample.1", "norm3"})
    if (w.has(block + name + ".weight")) names.push_back(block + name);
  if (names.empty()) names.push_back(block + "downsample.1");
  return names;
}

// Folds y = γ·(x − mean)/√(var + eps) + β into the convolution that gives x.
void fold_norm(ConvWeights& c, const NetworkWeights& w, const std::string& norm) {
  std::vector<HostTensor> t;
  for (const char* s : kStatistics) t.push_back(w.read(norm + "." + s));
  const int64_t each = c.shape.in * c.shape.taps();
  for (int64_t o = 0; o < c.shape.out; ++o) {
    const auto value = [&](size_t i) { return static_cast<double>(t[i].f32()[o]); };
    if (value(3) < 0)
      throw Error(fmt::format("{}: \"{}.running_var\" is negative at element {}", w.path(), norm, o), "scores would mean nothing; fetch the file again");
    const double factor = value(0) / std::sqrt(value(3) + kNormEps);
    float& b = c.bias[static_cast<size_t>(o)];
    b = static_cast<float>((static_cast<double>(b) - value(2)) * factor + value(1));
    for (int64_t i = o * each; i < (o + 1) * each; ++i) c.w[static_cast<size_t>(i)] = static_cast<float>(static_cast<double>(c.w[static_cast<size_t>(i)]) * factor);
  }
}

// One block of a network's file.
struct BlockNames {
  std::string prefix;  // "fnet.layer2.0."
  int convolutions;    // 2, or 3 for a bottleneck
  int64_t stride;
  bool shortcut;
};
std::vector<BlockNames> blocks_of(const NetworkWeights& w, const std::string& prefix) {
  std::vector<BlockNames> out;
  for (int layer = 1; layer <= 3; ++layer)
    for (int b = 0; b < 2; ++b) {
      BlockNames n{fmt::format("{}layer{}.{}.", prefix, layer, b), 2, layer > 1 && b == 0 ? 2 : 1, layer > 1 && b == 0};
      if (w.has(n.prefix + "conv3.weight")) n.convolutions = 3;
      out.push_back(n);
    }
  return out;
}

}  // namespace

void ResidualEncoder::expect(const NetworkWeights& w, const std::string& prefix, EncoderNorm norm, std::map<std::string, Shape>& expected,
                             std::vector<std::string>& ignored) {
  const auto convolution = [&](const std::string& name, int64_t out, int64_t in, int64_t k) {
    expected[name + ".weight"] = {out, in, k, k};
    expected[name + ".bias"] = {out};
  };
  const auto batch_norm = [&](const std::string& name, int64_t width) {
    if (norm == EncoderNorm::kInstance) return;
    for (const char* s : kStatistics) expected[name + "." + s] = {width};
    ignored.push_back(name + ".num_batches_tracked");
  };
  int64_t in = width_of(w, prefix + "conv1.weight");
  convolution(prefix + "conv1", in, 3, 7);
  batch_norm(prefix + "norm1", in);
  for (const BlockNames& b : blocks_of(w, prefix)) {
    int64_t from = in, out = in;
    for (int i = 1; i <= b.convolutions; ++i, from = out) {
      const std::string name = fmt::format("{}conv{}", b.prefix, i);
      out = width_of(w, name + ".weight");
      convolution(name, out, from, b.convolutions == 3 && i != 2 ? 1 : 3);
      batch_norm(fmt::format("{}norm{}", b.prefix, i), out);
    }
    if (b.shortcut) {
      convolution(b.prefix + "downsample.0", out, in, 1);
      if (norm == EncoderNorm::kBatch)
        for (const std::string& name : shortcut_norms(w, b.prefix)) batch_norm(name, out);
    } else if (out != in) {
      throw Error(fmt::format("{}: \"{}conv{}.weight\" gives {} channels where its block takes {}", w.path(), b.prefix, b.convolutions, out, in),
                  "use the published file, with its names as they are");
    }
    in = out;
  }
}

ResidualEncoder::ResidualEncoder(const Place& place, const NetworkWeights& w, const std::string& prefix, EncoderNorm norm) : norm_(norm) {
  // ReLU follows a folded norm at once; an instance norm needs the whole map first.
  const std::vector<float> slope = norm == EncoderNorm::kBatch ? std::vector<float>{0} : std::vector<float>{};
  const auto read = [&](const std::string& name, const std::string& norm_name) {
    ConvWeights c = ConvWeights::read(w, name);
    if (norm == EncoderNorm::kBatch) fold_norm(c, w, norm_name);
    return c;
  };
  stem_ = FrameConvolution(place, over_blocks(read(prefix + "conv1", prefix + "norm1")), slope);
  for (const BlockNames& b : blocks_of(w, prefix)) {
    Block& block = layers_.emplace_back();
    int64_t stride = b.stride;
    for (int i = 1; i <= b.convolutions; ++i) {
      const ConvWeights c = read(fmt::format("{}conv{}", b.prefix, i), fmt::format("{}norm{}", b.prefix, i));
      block.convolutions.emplace_back(place, c, slope, c.shape.kh == 3 ? std::exchange(stride, 1) : 1);
    }
    if (b.shortcut)
      block.shortcut.emplace_back(place, read(b.prefix + "downsample.0", shortcut_norms(w, b.prefix).front()), std::vector<float>{}, b.stride);
  }
}

// One forward pass: its frames, which blocks of one size share.
class ResidualEncoder::Pass {
 public:
  Pass(const Place& place, EncoderNorm norm) : place_(place), norm_(norm) {}

  // norm and ReLU of a convolution's results, in place. With a folded norm they are done.
  void norm_relu(Frame& x) {
    if (norm_ == EncoderNorm::kInstance) frame_relu(place_.stream(), x.data(), x.layout(), term(x, 0), {});
  }
  // x = ReLU(ReLU(norm(y)) + x), or + the norm of x where x is a shortcut's result.
  void add_relu(Frame& x, const Frame& y, bool shortcut) {
    const FrameTerm first = term(y, 0);
    frame_relu(place_.stream(), x.data(), x.layout(), first, shortcut ? term(x, 1) : FrameTerm{x.data(), nullptr, nullptr});
  }
  void block(const Block& b, Frame& x) {
    const Frame* from = &x;
    for (size_t i = 0; i < b.convolutions.size(); ++i) {
      const FrameConvolution& c = b.convolutions[i];
      Frame& to = scratch(i, from->layout(), c);
      c(place_, to, *from);
      if (i + 1 < b.convolutions.size()) norm_relu(to);
      from = &to;
    }
    if (!b.shortcut.empty()) {
      Frame shortcut(place_, from->layout().height, from->layout().width, from->layout().channels);
      b.shortcut[0](place_, shortcut, x);
      x = std::move(shortcut);
    }
    add_relu(x, *from, !b.shortcut.empty());
  }

 private:
  Frame& scratch(size_t i, const FrameLayout& in, const FrameConvolution& c) {
    const int64_t h = in.height / c.stride(), w = in.width / c.stride();
    const FrameLayout& l = frames_[i].layout();
    if (l.height != h || l.width != w || l.channels != c.out_channels()) {
      frames_[i] = Frame();
      frames_[i] = Frame(place_, h, w, c.out_channels());
    }
    return frames_[i];
  }
  void grow(PlacedTensor& t, DType dtype, int64_t elements) {
    if (t.empty() || t.elements() < elements) t = PlacedTensor(place_, dtype, {elements});
  }
  FrameTerm term(const Frame& x, size_t slot) {
    if (norm_ == EncoderNorm::kBatch) return {x.data(), nullptr, nullptr};
    PlacedTensor &scale = scale_[slot], &shift = shift_[slot];
    grow(scale, DType::kF32, x.layout().stored());
    grow(shift, DType::kF32, x.layout().stored());
    grow(sums_, DType::kU8, 8 * instance_norm_scratch(x.layout()));
    instance_norm_scale(place_.stream(), scale.f32(), shift.f32(), reinterpret_cast<double*>(sums_.data()), x.data(), x.layout(), static_cast<float>(kNormEps));
    return {x.data(), scale.f32(), shift.f32()};
  }

  Place place_;
  EncoderNorm norm_;
  std::array<Frame, 3> frames_;
  PlacedTensor scale_[2], shift_[2], sums_;
};

Frame ResidualEncoder::forward(const Place& place, const Frame& blocks) const {
  const FrameLayout& l = blocks.layout();
  MS_CHECK(l.height % 4 == 0 && l.width % 4 == 0 && l.channels == 12 && l.border == 2);
  Pass pass(place, norm_);
  Frame x(place, l.height, l.width, stem_.out_channels());
  stem_(place, x, blocks);
  pass.norm_relu(x);
  for (const Block& b : layers_) pass.block(b, x);
  return x;
}

}  // namespace megaslide
