#include "data/shots.h"

#include <algorithm>
#include <cmath>

namespace megaslide {
namespace {

constexpr int64_t kMostBlocks = 32;
constexpr double kSmallest = 12, kOverMotion = 3, kStays = 0.5;

using Blocks = std::vector<float>;  // 3 × rows × columns means, 0..255

Blocks block_means(const TensorView& video, int64_t frame) {
  const Shape& s = video.shape;
  const int64_t height = s[2], width = s[3], side = (std::max(height, width) + kMostBlocks - 1) / kMostBlocks;
  const int64_t rows = (height + side - 1) / side, columns = (width + side - 1) / side;
  Blocks out(static_cast<size_t>(3 * rows * columns));
  for (int64_t c = 0; c < 3; ++c) {
    const float* plane = reinterpret_cast<const float*>(video.data) + (c * s[1] + frame) * height * width;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t q = 0; q < columns; ++q) {
        const int64_t y1 = std::min(height, (r + 1) * side), x1 = std::min(width, (q + 1) * side);
        float sum = 0;
        for (int64_t y = r * side; y < y1; ++y)
          for (int64_t x = q * side; x < x1; ++x) sum += plane[y * width + x];
        out[static_cast<size_t>((c * rows + r) * columns + q)] = 127.5f * sum / static_cast<float>((y1 - r * side) * (x1 - q * side));
      }
  }
  return out;
}

double difference(const Blocks& a, const Blocks& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

}  // namespace

std::vector<int64_t> find_cuts(const TensorView& video) {
  const int64_t frames = video.shape.at(1);
  std::vector<Blocks> blocks;
  for (int64_t f = 0; f < frames; ++f) blocks.push_back(block_means(video, f));
  const auto between = [&](int64_t a, int64_t b) { return difference(blocks[static_cast<size_t>(a)], blocks[static_cast<size_t>(b)]); };
  std::vector<double> step(static_cast<size_t>(std::max<int64_t>(frames, 1)));  // step[i] = s(i-1, i)
  for (int64_t i = 1; i < frames; ++i) step[static_cast<size_t>(i)] = between(i - 1, i);

  std::vector<int64_t> cuts;
  for (int64_t i = 1; i < frames; ++i) {
    const double here = step[static_cast<size_t>(i)];
    if (here < kSmallest) continue;
    double motion = 0;
    int64_t pairs = 0;
    for (int64_t j = std::max<int64_t>(1, i - 2); j <= std::min(frames - 1, i + 2); ++j)
      if (j != i) motion += step[static_cast<size_t>(j)], ++pairs;
    if (pairs > 0 && here < kOverMotion * motion / static_cast<double>(pairs)) continue;
    if (i + 1 < frames && between(i - 1, i + 1) < kStays * here) continue;
    if (i >= 2 && between(i - 2, i) < kStays * here) continue;
    cuts.push_back(i);
  }
  return cuts;
}

std::vector<int64_t> latent_cuts(const std::vector<int64_t>& cuts, int64_t latent_frames, int64_t stride) {
  std::vector<int64_t> out;
  for (const int64_t cut : cuts) {
    int64_t frame = (cut + stride - 1) / stride;
    const int64_t pictures_of_the_later = stride * frame - cut + 1;
    if (2 * pictures_of_the_later < stride) ++frame;
    if (frame < 1 || frame >= latent_frames || (!out.empty() && out.back() == frame)) continue;
    out.push_back(frame);
  }
  return out;
}

void shot_tables(const std::vector<int64_t>& latent_cuts, int64_t latent_frames, int32_t* lo, int32_t* hi) {
  int64_t begin = 0;
  for (size_t i = 0; i <= latent_cuts.size(); ++i) {
    const int64_t end = i < latent_cuts.size() ? latent_cuts[i] : latent_frames;
    for (int64_t t = begin; t < end; ++t) lo[t] = static_cast<int32_t>(begin), hi[t] = static_cast<int32_t>(end - 1);
    begin = end;
  }
}

}  // namespace megaslide
