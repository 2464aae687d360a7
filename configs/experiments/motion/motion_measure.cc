#include "motion_measure.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    ab += x * y, aa += x * x, bb += y * y;
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

double MeanOf::mean() const { return count == 0 ? kNan : sum / static_cast<double>(count); }

TokenLosses token_losses(const MotionBatch& batch, std::span<const float> out) {
  const Shape& shape = batch.latent_shape();
  const auto n = static_cast<size_t>(element_count(shape));
  if (out.size() != n * static_cast<size_t>(batch.samples()))
    throw Error(fmt::format("a prediction of {} numbers is not of {} samples of {}", out.size(), batch.samples(), to_string(shape)), "run finetune --probe on the same batch");
  const auto tokens = static_cast<size_t>(batch.tokens()), numbers = static_cast<size_t>(4 * batch.channels());
  TokenLosses losses;
  std::vector<float> difference(n);
  for (int64_t s = 0; s < batch.samples(); ++s) {
    const auto truth = batch.velocity(s);
    const auto said = out.subspan(static_cast<size_t>(s) * n, n);
    for (size_t i = 0; i < n; ++i) difference[i] = said[i] - truth[i];
    const std::vector<float> by_token = as_tokens(difference, shape);
    const auto kind = batch.kind(s);
    for (size_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (size_t i = t * numbers; i < (t + 1) * numbers; ++i) sum += static_cast<double>(by_token[i]) * static_cast<double>(by_token[i]);
      losses.kinds.at(kind[t]).add(sum / static_cast<double>(numbers));
      losses.all.add(sum / static_cast<double>(numbers));
    }
  }
  return losses;
}

std::vector<float> as_tokens(std::span<const float> latent, const Shape& shape) {
  const int64_t c = shape[0], t = shape[1], h = shape[2], w = shape[3];
  std::vector<float> tokens;
  tokens.reserve(latent.size());
  for (int64_t f = 0; f < t; ++f)
    for (int64_t y = 0; y < h; y += 2)
      for (int64_t x = 0; x < w; x += 2)
        for (int64_t channel = 0; channel < c; ++channel)
          for (const int64_t at : {y * w + x, y * w + x + 1, (y + 1) * w + x, (y + 1) * w + x + 1}) tokens.push_back(latent[static_cast<size_t>((channel * t + f) * h * w + at)]);
  return tokens;
}

double still_cosine(std::span<const float> latent, const Shape& shape) {
  const std::vector<float> tokens = as_tokens(latent, shape);
  const auto numbers = static_cast<size_t>(4 * shape[0]), frame = static_cast<size_t>(shape[2] * shape[3] / 4);
  MeanOf mean;
  const std::span<const float> all(tokens);
  for (size_t i = 0; i + frame < tokens.size() / numbers; ++i) mean.add(cosine(all.subspan(i * numbers, numbers), all.subspan((i + frame) * numbers, numbers)));
  return mean.mean();
}

MeanOf tracked_cosine(const MotionBatch& batch, int64_t sample, std::span<const float> clean) {
  const int64_t frames = batch.frames(), height = batch.height(), width = batch.width();
  const auto numbers = static_cast<size_t>(4 * batch.channels());
  const std::vector<float> tokens = as_tokens(clean, batch.latent_shape());
  const auto displacement = batch.displacement(sample);
  const auto surface = batch.surface(sample);
  MeanOf mean;
  std::vector<float> there(numbers);
  for (int64_t t = 0; t + 1 < frames; ++t)
    for (int64_t h = 0; h < height; ++h)
      for (int64_t w = 0; w < width; ++w) {
        const auto at = static_cast<size_t>((t * height + h) * width + w);
        if (surface[at] == 0) continue;
        const size_t to = (at * static_cast<size_t>(frames) + static_cast<size_t>(t + 1)) * 2;
        const double y = static_cast<double>(h) + static_cast<double>(displacement[to]), x = static_cast<double>(w) + static_cast<double>(displacement[to + 1]);
        if (y < 0 || x < 0 || y > static_cast<double>(height - 1) || x > static_cast<double>(width - 1)) continue;
        const auto token_at = [&](int64_t row, int64_t column) { return static_cast<size_t>(((t + 1) * height + std::min(row, height - 1)) * width + std::min(column, width - 1)); };
        if (surface[token_at(std::lround(y), std::lround(x))] != surface[at]) continue;
        const auto y0 = static_cast<int64_t>(y), x0 = static_cast<int64_t>(x);
        const double fy = y - static_cast<double>(y0), fx = x - static_cast<double>(x0);
        std::ranges::fill(there, 0.0f);
        for (const auto& [row, wy] : {std::pair(y0, 1 - fy), std::pair(y0 + 1, fy)})
          for (const auto& [column, wx] : {std::pair(x0, 1 - fx), std::pair(x0 + 1, fx)})
            for (size_t i = 0; i < numbers; ++i) there[i] += static_cast<float>(wy * wx) * tokens[token_at(row, column) * numbers + i];
        mean.add(cosine(std::span<const float>(tokens).subspan(at * numbers, numbers), there));
      }
  return mean;
}

Interval interval_of(std::span<const double> values) {
  // The 97.5% quantiles for 1 … 20 degrees of freedom; above, the normal distribution's is short by less than 4%.
  constexpr double kStudent[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  Interval i;
  i.n = std::ssize(values);
  if (i.n == 0) return {kNan, kNan, 0};
  for (const double v : values) i.mean += v / static_cast<double>(i.n);
  if (i.n < 2) return {i.mean, kNan, i.n};
  double squares = 0;
  for (const double v : values) squares += (v - i.mean) * (v - i.mean);
  const size_t freedom = values.size() - 1;
  const double student = freedom <= std::size(kStudent) ? kStudent[freedom - 1] : 2.04;
  i.half = student * std::sqrt(squares / static_cast<double>(freedom) / static_cast<double>(i.n));
  return i;
}

}  // namespace megaslide
