#include "data/selection.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

// One number of at most six digits; -1 otherwise.
int64_t small_number(std::string_view s) {
  if (s.empty() || s.size() > 6) return -1;
  int64_t v = 0;
  for (const char c : s) {
    if (c < '0' || c > '9') return -1;
    v = v * 10 + (c - '0');
  }
  return v;
}

Bucket parse_bucket(const std::string& word, const std::string& where, int64_t width, int64_t height) {
  std::vector<int64_t> numbers;
  size_t at = 0;
  while (at <= word.size()) {
    const size_t end = std::min(word.find_first_of("xX", at), word.size());
    numbers.push_back(small_number(std::string_view(word).substr(at, end - at)));
    at = end + 1;
  }
  const bool valid = numbers.size() <= 3 && std::all_of(numbers.begin(), numbers.end(), [](int64_t n) { return n > 0; });
  if (!valid) throw usage_error(fmt::format("{}: expected WxHxF, WxH or F, got {}", where, quote_for_message(word)), "for example 64x64x17");
  if (numbers.size() == 1) return {width, height, numbers[0]};
  return {numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 0};
}

Size own_size(const SelectionRule& rule, int64_t w, int64_t h) {
  return {w / rule.size_multiple * rule.size_multiple, h / rule.size_multiple * rule.size_multiple, true};
}

bool serves(const Bucket& b, const Size& size) {
  return b.width == 0 ? size.own : !size.own && b.width == size.width && b.height == size.height;
}

}  // namespace

std::string SelectionRule::text() const {
  std::string out = fmt::format("fps={} max={} multiple={} stride={}", fps, max_frames, size_multiple, temporal_stride);
  for (const Bucket& b : buckets) out += fmt::format(" {}x{}x{}", b.width, b.height, b.frames);
  return out;
}

void check_bucket(const Bucket& b, const ModelConfig& model, const std::string& where) {
  const int64_t stride = model.temporal_stride(), multiple = 2 * model.spatial_stride();  // a token is 2×2 latent cells
  if (b.frames != 0 && (b.frames - 1) % stride != 0)
    throw usage_error(fmt::format("{}: {} frames do not fit the model", where, b.frames),
                      fmt::format("use {}k+1 frames: 1, {}, {}, ...", stride, stride + 1, 2 * stride + 1));
  if (b.width % multiple != 0 || b.height % multiple != 0)
    throw usage_error(fmt::format("{}: {}x{} does not fit the model", where, b.width, b.height), fmt::format("use multiples of {}", multiple));
}

std::vector<Bucket> parse_buckets(std::string_view text, const std::string& name, const ModelConfig& model, int64_t width, int64_t height) {
  std::vector<Bucket> out;
  size_t line = 1;
  std::string word;
  bool comment = false;
  const auto take = [&] {
    if (word.empty()) return;
    const std::string where = fmt::format("{}:{}", name, line);
    out.push_back(parse_bucket(word, where, width, height));
    check_bucket(out.back(), model, where);
    word.clear();
  };
  for (const char c : text) {
    const bool separator = c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == ',' || c == ';' || c == '[' || c == ']';
    if (c == '#') comment = true;
    if (separator || comment) take();
    else word += c;
    if (c == '\n') {
      comment = false;
      ++line;
    }
  }
  take();
  if (out.empty()) throw usage_error(name + ": names no bucket", "give lines like 64x64x17");
  return out;
}

std::optional<Size> choose_size(const SelectionRule& rule, int64_t w, int64_t h, std::string& reason) {
  const Size own = own_size(rule, w, h);
  const double aspect = std::log(static_cast<double>(w) / static_cast<double>(h));
  std::optional<Size> best;
  std::array<double, 3> best_rank{};
  for (const Bucket& b : rule.buckets) {
    const Size s = b.width == 0 ? own : Size{b.width, b.height, false};
    if (s.width == 0 || s.height == 0) continue;
    const double distance = b.width == 0 ? 0 : std::abs(std::log(static_cast<double>(s.width) / static_cast<double>(s.height)) - aspect);
    const bool enlarges = s.width > w || s.height > h;
    const auto area = static_cast<double>(s.width * s.height);
    // Aspect ratios count as equal within 0.1%.
    const std::array<double, 3> rank = {std::round(distance * 1000), enlarges ? 1.0 : 0.0, enlarges ? area : -area};
    if (!best || rank < best_rank) {
      best = s;
      best_rank = rank;
    }
  }
  if (!best) reason = fmt::format("{}x{} is too small: less than {} pixels on a side", w, h, rule.size_multiple);
  return best;
}

int64_t most_frames(const SelectionRule& rule, const Size& size) {
  int64_t most = 0;
  for (const Bucket& b : rule.buckets)
    if (serves(b, size)) most = std::max(most, b.frames != 0 ? b.frames : rule.max_frames);
  return most;
}

int64_t choose_frames(const SelectionRule& rule, const Size& size, int64_t available, int64_t& smallest) {
  int64_t chosen = 0;
  smallest = 0;
  for (const Bucket& b : rule.buckets) {
    if (!serves(b, size)) continue;
    const int64_t least = b.frames != 0 ? b.frames : 1;
    smallest = smallest == 0 ? least : std::min(smallest, least);
    if (available < least) continue;
    const int64_t n = b.frames != 0 ? b.frames : (std::min(available, rule.max_frames) - 1) / rule.temporal_stride * rule.temporal_stride + 1;
    chosen = std::max(chosen, n);
  }
  return chosen;
}

namespace {
constexpr double kEpsilon = 1e-6;  // in outputs, as n = ceil(duration · fps - 1e-6)
}

// A clock of milliseconds (WebM, Matroska) rounds times by up to half a tick; a clock that ticks once a picture (AVI)
// is exact.
Retimer::Retimer(double fps, double tick) : fps_(fps), slack_(tick <= 0.002 ? 0.6 * tick * fps : 0) {}

int64_t Retimer::until(double time) {
  const int64_t before = next_;
  if (fps_ == 0) ++next_;
  // Outputs k with k/fps < time belong to the picture before.
  else next_ = std::max(next_, static_cast<int64_t>(std::ceil(time * fps_ - kEpsilon - slack_)));
  return next_ - before;
}

int64_t Retimer::at_end(double duration) {
  const int64_t before = next_;
  if (fps_ == 0) ++next_;
  else next_ = std::max(next_, static_cast<int64_t>(std::ceil(duration * fps_ - kEpsilon - 2 * slack_)));
  return next_ - before;
}

Region region_for(int64_t w, int64_t h, const Size& size) {
  const auto tw = static_cast<double>(size.width), th = static_cast<double>(size.height);
  if (size.own) {
    const int64_t left = (w - size.width) / 2, top = (h - size.height) / 2;  // whole pixels
    return {static_cast<double>(left), static_cast<double>(top), tw, th};
  }
  const double scale = std::max(tw / static_cast<double>(w), th / static_cast<double>(h));
  const double rw = tw / scale, rh = th / scale;
  Region r{(static_cast<double>(w) - rw) / 2, (static_cast<double>(h) - rh) / 2, rw, rh};
  if (scale == 1) {  // whole pixels, so that pictures are copied and not interpolated
    r.x = std::floor(r.x);
    r.y = std::floor(r.y);
  }
  return r;
}

}  // namespace megaslide
