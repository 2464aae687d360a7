#include "clips.h"

#include <algorithm>
#include <cmath>

namespace megaslide::cases {

Encoded encode(Case& c, const std::string& name, const std::vector<std::string>& datasets, const std::vector<std::string>& flags, const RunLimits& limits) {
  Encoded e;
  e.cache = c.work(name);
  std::vector<std::string> command = {"encode-clips"};
  command.insert(command.end(), datasets.begin(), datasets.end());
  for (const std::string& a : {std::string("-o"), e.cache, std::string("--model"), c.model(), std::string("--json"), std::string("--pictures"), e.cache + "-pictures"})
    command.push_back(a);
  command.insert(command.end(), flags.begin(), flags.end());
  e.run = c.run(command, limits);
  e.report = e.run.json();
  return e;
}

const Json* Encoded::find(const std::string& path, const std::string& caption) const {
  if (!report.is_object()) return nullptr;
  for (const Json& clip : report.at("clips"))
    if (clip.at("path") == path && (caption.empty() || clip.at("caption") == caption)) return &clip;
  return nullptr;
}

std::vector<std::string> Encoded::kept() const {
  std::vector<std::string> out;
  if (report.is_object())
    for (const Json& clip : report.at("clips"))
      if (clip.at("status") != "dropped") out.push_back(clip.at("path"));
  return out;
}

std::vector<Picture> pictures_of(const Json& clip) {
  const auto reader = open_video(clip.at("pictures").get<std::string>());
  std::vector<Picture> out;
  Picture p;
  double time = 0;
  while (reader->next(p, time)) out.push_back(p);
  return out;
}

namespace {

Picture turned_back(const Picture& p) {
  Picture out{p.height, p.width, std::vector<uint8_t>(p.rgb.size())};
  for (int64_t y = 0; y < out.height; ++y)
    for (int64_t x = 0; x < out.width; ++x)
      for (int64_t c = 0; c < 3; ++c)
        out.rgb[static_cast<size_t>((y * out.width + x) * 3 + c)] = p.rgb[static_cast<size_t>((x * p.width + (p.width - 1 - y)) * 3 + c)];
  return out;
}

// Ten square blocks of side max(8, w / 20), centred in a w×h picture: white, black, then bits 7 to 0.
int stamp(const Picture& p, int64_t w, int64_t h) {
  const int64_t s = std::max<int64_t>(8, w / 20);
  const int64_t x0 = (w - 10 * s) / 2 - (w - p.width) / 2, y0 = (h - s) / 2 - (h - p.height) / 2;
  if (x0 < 0 || y0 < 0 || x0 + 10 * s > p.width || y0 + s > p.height) return -1;
  double v[10];
  for (int64_t k = 0; k < 10; ++k) v[k] = mean_colour(p, x0 + k * s + s / 4, y0 + s / 4, s - s / 4 - s / 4, s - s / 4 - s / 4).g;
  if (v[0] - v[1] < 40) return -1;
  int n = 0;
  for (int b = 0; b < 8; ++b)
    if (v[2 + b] > (v[0] + v[1]) / 2) n |= 1 << (7 - b);
  return n;
}

}  // namespace

std::vector<int> stamps_of(const Json& clip, bool quarter_turn) {
  std::vector<int> out;
  const int64_t w = clip.at("size_decoded")[quarter_turn ? 1 : 0], h = clip.at("size_decoded")[quarter_turn ? 0 : 1];
  for (const Picture& p : pictures_of(clip)) out.push_back(stamp(quarter_turn ? turned_back(p) : p, w, h));
  return out;
}

Rgb mean_colour(const Picture& p, int64_t x, int64_t y, int64_t w, int64_t h) {
  Rgb sum;
  for (int64_t j = y; j < y + h; ++j)
    for (int64_t i = x; i < x + w; ++i) {
      const uint8_t* q = &p.rgb.at(static_cast<size_t>((j * p.width + i) * 3));
      sum.r += q[0];
      sum.g += q[1];
      sum.b += q[2];
    }
  const auto n = static_cast<double>(w * h);
  return {sum.r / n, sum.g / n, sum.b / n};
}

std::string colour_name(const Rgb& c) {
  const std::vector<std::pair<std::string, Rgb>> known = {{"red", {220, 30, 30}}, {"green", {30, 200, 30}}, {"blue", {30, 30, 220}}, {"yellow", {220, 200, 30}}};
  std::string best;
  double least = 1e9;
  for (const auto& [name, k] : known)
    if (const double d = std::abs(c.r - k.r) + std::abs(c.g - k.g) + std::abs(c.b - k.b); d < least) {
      least = d;
      best = name;
    }
  return best;
}

std::vector<int> ints(const Json& array, size_t most) {
  std::vector<int> out;
  for (const Json& x : array)
    if (out.size() < most) out.push_back(x.get<int>());
  return out;
}

std::string shown(const std::vector<int>& n) {
  bool run = n.size() > 2;
  for (size_t i = 1; i < n.size(); ++i) run = run && n[i] == n[i - 1] + 1;
  if (run) return std::to_string(n.front()) + ".." + std::to_string(n.back());
  std::string out;
  for (const int i : n) out += (out.empty() ? "" : ",") + std::to_string(i);
  return out;
}

bool expect_clip(Case& c, const Json* clip, int64_t decoded, const std::vector<int>& stamps) {
  if (!c.expect(clip != nullptr, "the clip is not in the report")) return false;
  const std::string path = clip->at("path");
  if (!c.expect(clip->at("status") != "dropped", path + " is dropped: " + reason_of(*clip))) return false;
  c.expect(clip->at("frames_decoded") == decoded, path + ": " + clip->at("frames_decoded").dump() + " pictures decoded, expected " + std::to_string(decoded));
  const std::vector<int> got = stamps_of(*clip);
  const std::vector<int> want(stamps.begin(), stamps.begin() + static_cast<std::ptrdiff_t>(std::min(stamps.size(), got.size())));
  c.expect(!got.empty() && got == want, path + ": pictures " + shown(got) + ", expected " + shown(want));
  c.saw(path + ": " + clip->at("frames_decoded").dump() + " pictures of " + clip->at("size_decoded").dump() + ", used " + shown(got));
  return true;
}

void expect_dropped(Case& c, const Encoded& e, const std::string& path, const std::string& reason) {
  const Json* clip = e.find(path);
  if (!c.expect(clip != nullptr, path + " is not in the report")) return;
  c.expect(clip->at("status") == "dropped" && reason_of(*clip).find(reason) != std::string::npos,
           path + " should be dropped for \"" + reason + "\", is " + clip->at("status").dump() + ": " + reason_of(*clip));
  c.saw(path + " dropped: " + reason_of(*clip));
}

std::string reason_of(const Json& clip) { return clip.at("reason"); }

std::string warnings_of(const Json& clip) {
  std::string out;
  if (clip.contains("warnings"))
    for (const Json& w : clip.at("warnings")) out += w.get<std::string>() + "\n";
  return out;
}

}  // namespace megaslide::cases
