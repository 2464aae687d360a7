#include "motion_scene.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"

namespace megaslide {
namespace {

constexpr double kPi = 3.141592653589793;

struct Colour {
  const char* name;
  double rgb[3];
};
constexpr Colour kColours[] = {{"red", {220, 50, 40}},   {"blue", {50, 80, 220}},  {"green", {40, 170, 70}},
                               {"yellow", {235, 200, 40}}, {"white", {235, 235, 235}}, {"purple", {150, 60, 180}}};
constexpr Colour kBackground{"grey", {120, 120, 120}};
constexpr const char* kShapes[] = {"disc", "square", "cross"};

// What a draw is for: a series of its own each.
enum Draw : uint64_t { kShape, kColour, kRadius, kStart, kSpeed, kHeading, kTurn, kAngle, kTexture };

double between(double low, double high, double share) { return low + (high - low) * share; }

// A mirror at either end of [0, length].
double reflected(double x, double length) {
  const double period = 2 * length, phase = x - period * std::floor(x / period);
  return phase < length ? phase : period - phase;
}

// The moment that a frame shows: of those that are held together, the middle one.
int64_t held(int64_t frame, int64_t hold, int64_t frames) {
  if (frame == 0) return 0;
  const int64_t last = (frame + hold - 1) / hold * hold;
  return std::min(last - hold / 2, frames - 1);
}

double snapped(double x, double step) { return step > 0 ? step * std::round(x / step) : x; }

double box_distance(double u, double v, double half_u, double half_v) {
  const double x = std::abs(u) - half_u, y = std::abs(v) - half_v;
  return std::hypot(std::max(x, 0.0), std::max(y, 0.0)) + std::min(std::max(x, y), 0.0);
}

// Draws of one surface of one clip.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t clip, size_t surface) : random_(seed, RandomPurpose::kSample), series_(clip << 16 | surface << 8) {}
  double operator()(Draw what, uint64_t index = 0) const { return random_.uniform(series_ | what, index); }

 private:
  Random random_;
  uint64_t series_;
};

}  // namespace

std::array<double, 3> motion_colour(std::string_view name) {
  for (const Colour& c : kColours)
    if (name == c.name) return {c.rgb[0], c.rgb[1], c.rgb[2]};
  throw Error(fmt::format("no sprite is {}", name), "red, blue, green, yellow, white and purple are");
}

MotionScene::MotionScene(const MotionSceneOptions& o, uint64_t seed, uint64_t clip) : options_(o), seed_(seed), clip_(clip) {
  if (o.sprites < 0 || o.sprites > 32) throw usage_error("a scene has 0 to 32 sprites", "use another number");
  if (!(o.slowest > 0 && o.slowest <= o.fastest)) throw usage_error("speeds begin above 0 and do not fall", "give the slowest one first");
  if (!(o.saturation >= 0 && o.saturation <= 1)) throw usage_error("saturation is 0 to 1", "use another number");
  if (!(o.grain >= 1)) throw usage_error("the grain of a texture is 1 pixel or more", "use a larger one");
  if (o.hold < 1) throw usage_error("a moment is held for 1 frame or more", "use a larger number");
  if (!(o.snap >= 0)) throw usage_error("places are rounded to multiples of 0 pixels or more", "use a larger number");
  surfaces_.resize(static_cast<size_t>(o.sprites) + 1);
  for (size_t i = 0; i < surfaces_.size(); ++i) {
    Surface& s = surfaces_[i];
    const Draws draw(seed, clip, i);
    const Colour& colour = i == 0 ? kBackground : kColours[static_cast<size_t>(draw(kColour) * std::size(kColours))];
    s.colour = colour.name;
    const double grey = 0.299 * colour.rgb[0] + 0.587 * colour.rgb[1] + 0.114 * colour.rgb[2];
    double rgb[3];
    for (size_t c = 0; c < 3; ++c) rgb[c] = between(grey, colour.rgb[c], o.saturation);
    for (size_t c = 0; c < 3; ++c) s.rgb[0][c] = 0.25 * rgb[c], s.rgb[1][c] = std::min(255.0, 1.1 * rgb[c]);
    const double share = draw(kSpeed);
    if (i > 0) {
      s.shape = kShapes[static_cast<size_t>(draw(kShape) * std::size(kShapes))];
      s.radius = static_cast<double>(std::min(o.height, o.width)) * between(0.12, 0.25, draw(kRadius));
      s.angle = between(0, kPi / 2, draw(kAngle));
    }
    make_path(i, i == 0 ? o.pan : o.slowest * std::pow(o.fastest / o.slowest, share), i == 0 ? 0.3 : 1.2, i > 0);
  }
}

// A heading that swings smoothly about its mean. Sprites start inside and turn back at the borders.
void MotionScene::make_path(size_t surface, double speed, double turns, bool reflect) {
  Surface& s = surfaces_[surface];
  const Draws draw(seed_, clip_, surface);
  const double height = static_cast<double>(options_.height), width = static_cast<double>(options_.width);
  const double heading = 2 * kPi * draw(kHeading), phase = 2 * kPi * draw(kTurn, 0), rate = 2 * kPi / between(12, 40, draw(kTurn, 1));
  double h = reflect ? height * draw(kStart, 0) : 0, w = reflect ? width * draw(kStart, 1) : 0;
  s.speed = speed;
  std::vector<std::array<double, 2>> free;  // the path before it is held and rounded
  for (int64_t t = 0; t < options_.frames; ++t) {
    free.push_back({reflect ? reflected(h, height) : h, reflect ? reflected(w, width) : w});
    const double direction = heading + turns * std::sin(rate * static_cast<double>(t) + phase);
    h += speed * std::sin(direction), w += speed * std::cos(direction);
  }
  for (int64_t t = 0; t < options_.frames; ++t) {
    const auto& at = free[static_cast<size_t>(held(t, options_.hold, options_.frames))];
    s.at_h.push_back(snapped(at[0], options_.snap)), s.at_w.push_back(snapped(at[1], options_.snap));
  }
}

double MotionScene::distance(const Surface& s, int64_t frame, double h, double w) const {
  if (s.radius == 0) return -1e9;
  const double y = h - s.at_h[static_cast<size_t>(frame)], x = w - s.at_w[static_cast<size_t>(frame)];
  const double u = std::cos(s.angle) * x + std::sin(s.angle) * y, v = std::cos(s.angle) * y - std::sin(s.angle) * x;
  if (s.shape == "disc") return std::hypot(u, v) - s.radius;
  if (s.shape == "square") return box_distance(u, v, 0.85 * s.radius, 0.85 * s.radius);
  return std::min(box_distance(u, v, s.radius, 0.35 * s.radius), box_distance(u, v, 0.35 * s.radius, s.radius));
}

// Two octaves of values on a lattice, joined by a curve with two continuous derivatives: a shift by part of a pixel is
// one of the picture too.
double MotionScene::texture(size_t surface, double u, double v) const {
  const Draws draw(seed_, clip_, surface);
  double sum = 0;
  for (const double scale : {1.0, 2.5}) {
    const double x = u / (options_.grain * scale) + 100 * scale, y = v / (options_.grain * scale);
    const double fx = x - std::floor(x), fy = y - std::floor(y);
    const auto value = [&](int64_t dx, int64_t dy) {
      const auto cell = [](double at, int64_t by) { return static_cast<uint64_t>(static_cast<int64_t>(std::floor(at)) + by) & 0xffff; };
      return draw(kTexture, cell(x, dx) << 16 | cell(y, dy));
    };
    const auto ease = [](double f) { return f * f * f * (f * (6 * f - 15) + 10); };
    const double top = between(value(0, 0), value(1, 0), ease(fx)), bottom = between(value(0, 1), value(1, 1), ease(fx));
    sum += 0.5 * between(top, bottom, ease(fy));
  }
  return std::clamp(between(-0.5, 1.5, sum), 0.0, 1.0);  // values near the middle are the most frequent ones
}

Picture MotionScene::picture(int64_t frame) const {
  Picture p{options_.width, options_.height, {}};
  p.rgb.reserve(static_cast<size_t>(3 * p.width * p.height));
  for (int64_t y = 0; y < p.height; ++y)
    for (int64_t x = 0; x < p.width; ++x) {
      double rgb[3] = {0, 0, 0};
      for (size_t i = 0; i < surfaces_.size(); ++i) {
        const Surface& s = surfaces_[i];
        const double h = static_cast<double>(y) + 0.5, w = static_cast<double>(x) + 0.5;
        const double cover = std::clamp(0.5 - distance(s, frame, h, w), 0.0, 1.0);  // a pixel wide edge
        if (cover == 0) continue;
        const double tone = texture(i, w - s.at_w[static_cast<size_t>(frame)], h - s.at_h[static_cast<size_t>(frame)]);
        for (size_t c = 0; c < 3; ++c) rgb[c] = between(rgb[c], between(s.rgb[0][c], s.rgb[1][c], tone), cover);
      }
      for (const double value : rgb) p.rgb.push_back(static_cast<uint8_t>(std::lround(value)));
    }
  return p;
}

int64_t MotionScene::surface_at(int64_t frame, double h, double w) const {
  for (size_t i = surfaces_.size(); i-- > 1;)
    if (distance(surfaces_[i], frame, h, w) < 0) return static_cast<int64_t>(i);
  return 0;
}

std::string MotionScene::caption() const {
  std::string text;
  for (size_t i = 1; i < surfaces_.size(); ++i) {
    const Surface& s = surfaces_[i];
    const char* pace = s.speed < 1 ? "slow" : s.speed < 2 ? "quick" : "fast";
    text += fmt::format("{}a {} {} {}", i == 1 ? "" : i + 1 == surfaces_.size() ? " and " : ", ", pace, s.colour, s.shape);
  }
  return (text.empty() ? std::string("nothing") : text) + fmt::format(" over {} noise", surfaces_[0].colour);
}

}  // namespace megaslide
