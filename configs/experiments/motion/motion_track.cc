#include "motion_track.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/error.h"
#include "motion_scene.h"

namespace megaslide {
namespace {

constexpr double kNearness = 0.906;  // cosine of 25 degrees: the hues are 49 and more apart
constexpr double kStrength = 0.2;

struct Chroma {
  double b = 0, r = 0;
  double norm() const { return std::hypot(b, r); }
};

Chroma chroma(double red, double green, double blue) {
  const double y = 0.299 * red + 0.587 * green + 0.114 * blue;
  return {(blue - y) / 1.772, (red - y) / 1.402};
}

Chroma chroma_of(const std::string& colour) {
  const auto rgb = motion_colour(colour);
  return chroma(rgb[0], rgb[1], rgb[2]);
}

// Least squares of 1, t, t² over the points, and the sum of squares that it leaves.
double parabola_rest(std::span<const double> t, std::span<const double> x) {
  std::array<std::array<double, 4>, 3> m{};
  for (size_t i = 0; i < t.size(); ++i) {
    const double basis[3] = {1, t[i], t[i] * t[i]};
    for (size_t a = 0; a < 3; ++a) {
      for (size_t b = 0; b < 3; ++b) m[a][b] += basis[a] * basis[b];
      m[a][3] += basis[a] * x[i];
    }
  }
  for (size_t a = 0; a < 3; ++a)  // Gauss-Jordan; the matrix is positive definite for three and more times
    for (size_t b = 0; b < 3; ++b) {
      if (a == b) continue;
      const double factor = m[b][a] / m[a][a];
      for (size_t c = a; c < 4; ++c) m[b][c] -= factor * m[a][c];
    }
  double rest = 0;
  for (size_t i = 0; i < t.size(); ++i) {
    const double fit = m[0][3] / m[0][0] + m[1][3] / m[1][1] * t[i] + m[2][3] / m[2][2] * t[i] * t[i];
    rest += (x[i] - fit) * (x[i] - fit);
  }
  return rest;
}

// The middle of the largest patch of marked pixels, neighbours sharing a side; nothing where it is too small.
std::optional<Place> middle_of_largest(std::vector<uint8_t> marked, int64_t height, int64_t width) {
  const int64_t all = std::ranges::count(marked, 1);
  int64_t most = 0;
  Place place;
  std::vector<int64_t> open;
  for (int64_t start = 0; start < height * width; ++start) {
    if (marked[static_cast<size_t>(start)] == 0) continue;
    double h = 0, w = 0;
    int64_t pixels = 0;
    const auto visit = [&](int64_t at) {
      if (marked[static_cast<size_t>(at)] != 0) marked[static_cast<size_t>(at)] = 0, open.push_back(at);
    };
    visit(start);
    while (!open.empty()) {
      const int64_t at = open.back(), y = at / width, x = at % width;
      open.pop_back();
      h += static_cast<double>(y) + 0.5, w += static_cast<double>(x) + 0.5, ++pixels;
      if (y > 0) visit(at - width);
      if (y + 1 < height) visit(at + width);
      if (x > 0) visit(at - 1);
      if (x + 1 < width) visit(at + 1);
    }
    if (pixels > most) most = pixels, place = {h / static_cast<double>(pixels), w / static_cast<double>(pixels)};
  }
  if (most < kFewestPixels || 2 * most < all) return std::nullopt;
  return place;
}

}  // namespace

std::vector<CaptionSprite> trackable_sprites(const std::string& caption) {
  std::vector<CaptionSprite> all;
  std::map<std::string, int> uses;
  std::vector<std::string> words;
  for (size_t at = 0; at < caption.size();) {
    const size_t end = std::min(caption.find_first_of(" ,", at), caption.size());
    if (end > at) words.push_back(caption.substr(at, end - at));
    at = end + 1;
  }
  for (size_t i = 0; i + 3 < words.size() && words[i] != "over"; ++i)
    if (words[i] == "a") {
      all.push_back({words[i + 1], words[i + 2], words[i + 3], std::ssize(all) + 1});
      ++uses[words[i + 2]];
    }
  std::erase_if(all, [&](const CaptionSprite& s) { return s.colour == "white" || uses[s.colour] > 1; });
  return all;
}

Track track_colour(const TensorView& video, const std::string& colour, double saturation, std::span<const int64_t> frames) {
  MS_CHECK(video.dtype == DType::kF32 && video.shape.size() == 4 && video.shape[0] == 3, "a video (3,F,H,W)");
  const int64_t count = video.shape[1], height = video.shape[2], width = video.shape[3];
  const auto* values = reinterpret_cast<const float*>(video.data);
  const Chroma wanted = chroma_of(colour);
  Track track;
  for (const int64_t frame : frames) {
    MS_CHECK(frame >= 0 && frame < count, "a frame of the video");
    std::vector<uint8_t> ours(static_cast<size_t>(height * width));
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) {
        const auto level = [&](int64_t c) { return 127.5 * (1 + static_cast<double>(values[((c * count + frame) * height + y) * width + x])); };
        const Chroma here = chroma(level(0), level(1), level(2));
        const double along = (here.b * wanted.b + here.r * wanted.r) / wanted.norm();
        if (along < kStrength * saturation * wanted.norm() || along < kNearness * here.norm()) continue;
        ours[static_cast<size_t>(y * width + x)] = 1;
      }
    track.push_back(middle_of_largest(std::move(ours), height, width));
  }
  return track;
}

std::optional<double> path_residual(const Track& track) {
  std::vector<double> t, h, w;
  for (size_t i = 0; i < track.size(); ++i)
    if (track[i]) t.push_back(static_cast<double>(i)), h.push_back(track[i]->h), w.push_back(track[i]->w);
  if (t.size() < 5) return std::nullopt;
  return std::sqrt((parabola_rest(t, h) + parabola_rest(t, w)) / (2 * static_cast<double>(t.size() - 3)));
}

std::optional<double> mean_step(const Track& track) {
  double sum = 0;
  int64_t steps = 0;
  for (size_t i = 1; i < track.size(); ++i)
    if (track[i - 1] && track[i]) sum += std::hypot(track[i]->h - track[i - 1]->h, track[i]->w - track[i - 1]->w), ++steps;
  if (steps == 0) return std::nullopt;
  return sum / static_cast<double>(steps);
}

}  // namespace megaslide
