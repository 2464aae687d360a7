// Cases of kind "video": one awkward file each.
#include <algorithm>
#include <cmath>

#include "clips.h"

namespace megaslide::cases {
namespace {

const std::vector<std::string> kLoose = {"--allow-empty-captions"};

std::vector<std::string> loose(std::vector<std::string> flags) {
  flags.insert(flags.begin(), kLoose.begin(), kLoose.end());
  return flags;
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// A sanitizer's shadow memory is terabytes of address space.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMayLimitMemory = false;
#else
constexpr bool kMayLimitMemory = true;
#endif

// The case's first file, all of its frames, nothing else changed.
const Json* encode_whole(Case& c, Encoded& e, const RunLimits& limits = {}) {
  e = encode(c, "cache", {c.file()}, loose({"--num-frames", "81"}), limits);
  c.expect_status(e.run, 0, "encode-clips");
  return e.find(name_of(c.file()));
}

void rotated(Case& c) {
  Encoded e;
  const Json* clip = encode_whole(c, e);
  if (!c.expect(clip != nullptr, "not in the report")) return;
  c.expect(clip->at("size_decoded") == c.check().at("size") && clip->at("frames_decoded") == c.check().at("frames"), "size or length: " + clip->dump());
  c.expect(stamps_of(*clip, true) == ints(c.oracle().at("stamps")), "pictures " + shown(stamps_of(*clip, true)));
  const Picture first = pictures_of(*clip).front();
  const Json& corners = c.check().at("corners");
  const int64_t w = first.width, h = first.height;
  for (const auto& [name, x, y] : {std::tuple{"top_left", int64_t{2}, int64_t{2}}, {"top_right", w - 8, int64_t{2}}, {"bottom_left", int64_t{2}, h - 8}, {"bottom_right", w - 8, h - 8}})
    c.expect(corners.at(name) == colour_name(mean_colour(first, x, y, 6, 6)), std::string(name) + " is not " + corners.at(name).dump());
  write_text(c.work("buckets"), "160x96x25 96x160x25");
  const Encoded b = encode(c, "buckets-cache", {c.file()}, loose({"--buckets", c.work("buckets")}));
  const Json* in_bucket = b.find(name_of(c.file()));
  c.expect(in_bucket != nullptr && in_bucket->at("bucket") == "96x160x25", "the bucket is not that of the turned size");
  c.saw("25 pictures of 120x160, corners as the oracle's, bucket " + (in_bucket ? in_bucket->at("bucket").dump() : "none"));
}

void variable_rate(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()}, loose({"--fps", "16", "--num-frames", "81"}));
  const Json* clip = e.find("vfr.mp4");
  if (!c.expect(clip != nullptr && clip->at("status") == "retimed", "not re-timed")) return;
  const int64_t n = clip->at("frames_retimed"), want = c.check().at("out_frames");
  c.expect(clip->at("frames_decoded") == c.check().at("decoded") && std::abs(n - want) <= 1, "lengths: " + clip->dump());
  const std::vector<int> got = stamps_of(*clip);
  const auto is = [&](const char* key) { return got == ints(c.check().at(key), got.size()); };
  c.expect((is("screen") || is("nearest")) && !is("wrong"), "pictures " + shown(got));
  c.saw("45 pictures became " + std::to_string(n) + ", by time stamps: " + shown(got));
}

void whole(Case& c) {
  Encoded e;
  const Json* clip = encode_whole(c, e);
  expect_clip(c, clip, c.check().at("frames"), ints(c.check().at("stamps")));
}

void lying_header(Case& c) {
  Encoded e;
  const Json* clip = encode_whole(c, e, {.address_space = kMayLimitMemory ? int64_t{1} << 30 : 0});
  if (!expect_clip(c, clip, 30, ints(c.check().at("stamps")))) return;
  c.expect(clip->at("frames_retimed") == 30 && clip->at("frames_declared") == 1000000, "the report should give both counts");
  c.saw("1000000 declared; within 1 GiB of address space");
}

void odd_size(Case& c) {
  Encoded e;
  const Json* clip = encode_whole(c, e);
  if (!expect_clip(c, clip, 17, ints(c.oracle().at("stamps")))) return;
  c.expect(clip->at("size_decoded") == c.check().at("size"), "size " + clip->at("size_decoded").dump());
  c.expect(clip->at("size_used") == Json({160, 112}) && reason_of(*clip).find("3 of 163 columns and 9 of 121 rows cut") != std::string::npos, "the cut is not stated: " + reason_of(*clip));
  // Enlarged, so that the last column and row are seen: the yellow corner reaches the edge.
  const Encoded large = encode(c, "large", {c.file()}, loose({"--size", "176x128"}));
  const Picture p = pictures_of(*large.find("odd.webm")).front();
  c.expect(colour_name(mean_colour(p, p.width - 3, p.height - 8, 3, 6)) == "yellow" && colour_name(mean_colour(p, p.width - 8, p.height - 2, 6, 2)) == "yellow",
           "the last column or row is no picture");
  c.saw(reason_of(*clip) + "; the corner is yellow to the edge");
}

Rgb patch(const Picture& p, int64_t i) { return mean_colour(p, 32 * i + 8, 16, 16, 32); }

void high_dynamic_range(Case& c) {
  Encoded e;
  const Json* clip = encode_whole(c, e);
  if (!c.expect(clip != nullptr && clip->at("frames_decoded") == c.check().at("frames"), "not 9 pictures")) return;
  const Picture p = pictures_of(*clip).front();
  const auto luma = [](const Rgb& v) { return 0.2126 * v.r + 0.7152 * v.g + 0.0722 * v.b; };
  const double black = luma(patch(p, 0)), white = luma(patch(p, 1)), grey = luma(patch(p, 2));
  c.expect(black < grey - 5 && grey < white - 5, "grey does not lie between black and white");
  double reddest = -1e9;
  int64_t which = -1;
  for (int64_t i = 0; i < 6; ++i) {
    const Rgb v = patch(p, i);
    if (v.r - (v.g + v.b) / 2 > reddest) reddest = v.r - (v.g + v.b) / 2, which = i;
  }
  c.expect(which == 3, "red is not the reddest patch");
  const std::string warnings = warnings_of(*clip);
  c.expect(warnings.find("smpte2084") != std::string::npos && (warnings.find("tone") != std::string::npos || warnings.find("as if it were SDR") != std::string::npos), "the report is silent: " + warnings);
  char text[120];
  std::snprintf(text, sizeof text, "black %.0f, grey %.0f, white %.0f; ", black, grey, white);
  c.saw(text + warnings.substr(0, warnings.find('\n')));
}

void colour_tags(Case& c) {
  double worst = 0;
  for (size_t i = 0; i < 3; ++i) {
    const std::string name = name_of(c.file(i));
    const Encoded e = encode(c, "cache" + std::to_string(i), {c.file(i)}, kLoose);
    const Json* clip = e.find(name);
    if (!c.expect(clip != nullptr && clip->at("status") != "dropped", name + " is dropped")) continue;
    const Picture p = pictures_of(*clip).front();
    const std::vector<std::string> order = {"black", "white", "grey", "red", "green", "blue"};
    for (size_t k = 0; k < order.size(); ++k) {
      const Rgb got = patch(p, static_cast<int64_t>(k));
      const Json& want = c.check().at("rgb").at(order[k]);
      const double d = std::max({std::abs(got.r - want[0].get<double>()), std::abs(got.g - want[1].get<double>()), std::abs(got.b - want[2].get<double>())});
      worst = std::max(worst, d);
      c.expect(d <= c.check().at("tolerance").get<double>(), name + ": " + order[k] + " is off by " + std::to_string(d));
    }
  }
  char text[80];
  std::snprintf(text, sizeof text, "six patches of three clips, at most %.2f of 255 off", worst);
  c.saw(text);
}

void bad_files(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()});
  c.expect_status(e.run, 0, "encode-clips");
  const Json* good = e.find("good.mp4");
  c.expect(good != nullptr && good->at("frames_decoded") == 17 && good->at("status") != "dropped", "good.mp4 is not kept");
  const std::map<std::string, std::string> reasons = {{"audio-only.mp4", "no video stream"}, {"no-moov.mp4", "incomplete"}, {"empty.mp4", "0 bytes"},
                                                      {"web-page.mp4", "HTML"}, {"lfs-pointer.mp4", "git lfs pull"}, {"noise.mp4", "not a known format"}};
  for (const Json& name : c.check().at("dropped")) expect_dropped(c, e, name, reasons.at(name));
  const std::string folder = c.copy(c.file(), "only-bad");
  c.run({"rm", folder + "/good.mp4"});
  c.expect_status(encode(c, "none", {folder}).run, 1, "a folder without one good clip");
  for (const char ch : e.run.both()) c.expect(static_cast<unsigned char>(ch) >= 0x20 || ch == '\n', "a control character on the terminal");
}

void truncated(Case& c) {
  Encoded e;
  const Json* clip = encode_whole(c, e);
  if (!c.expect(clip != nullptr, "not in the report")) return;
  c.expect(clip->at("frames_declared") == 48, "48 declared pictures are not reported");
  const int64_t n = clip->at("frames_decoded");
  const std::vector<int> got = clip->at("status") == "dropped" ? std::vector<int>{} : stamps_of(*clip);
  c.expect(n >= 24 && n <= 25, std::to_string(n) + " decoded");
  for (size_t i = 0; i < got.size() && i < 24; ++i) c.expect(got[i] == static_cast<int>(i), "picture " + std::to_string(i) + " shows " + std::to_string(got[i]));
  c.expect(!warnings_of(*clip).empty(), "no warning");
  c.saw("48 declared, " + std::to_string(n) + " decoded, used " + shown(got) + ": " + warnings_of(*clip).substr(0, warnings_of(*clip).find('\n')));
}

void one_frame(Case& c) {
  write_text(c.work("both"), "[1, 17]");
  write_text(c.work("long"), "[17]");
  const Encoded e = encode(c, "cache", {c.file()}, loose({"--buckets", c.work("both")}));
  const Json* clip = e.find("one-frame.mp4");
  c.expect(clip != nullptr && clip->at("frames_used") == 1 && e.kept().size() == 1, "bucket 1 does not take it");
  const Json index = Json::parse(read_text(e.cache + "/index.json"), nullptr, false);
  c.expect(index.is_object() && index.at("clips")[0].at("latent")[1] == 1, "not one latent frame");
  const Encoded none = encode(c, "none", {c.file()}, loose({"--buckets", c.work("long")}));
  expect_dropped(c, none, "one-frame.mp4", "too short: 1 frame < 17");
  const RunResult r = c.run({"eval-vbench", c.file(), c.data() + "/video/bpyramid.mp4", "--dimension", "temporal_flickering", "--dimension", "subject_consistency", "--json"});
  c.expect_status(r, 0, "eval-vbench of a set with other clips");
  c.expect_says(r, "n/a: needs at least 2 frames");
  for (const char* word : {": nan", ": -nan", ": NaN", ": inf"}) c.expect(r.out.find(word) == std::string::npos, "no number in the scores");
  c.saw("bucket 1, one latent frame; score n/a: needs at least 2 frames");
}

void cover_art(Case& c) {
  const Encoded e = encode(c, "cache", {c.data() + "/video/cover-first.mp4", c.data() + "/video/music.mp4"}, loose({"--num-frames", "17"}));
  const Json& want = c.check().at("cover-first.mp4");
  for (const std::string& path : {std::string("cover-first.mp4"), c.data() + "/video/cover-first.mp4/cover-first.mp4"})
    if (const Json* clip = e.find(path)) {
      expect_clip(c, clip, want.at("frames"), ints(want.at("stamps")));
      c.expect(clip->at("size_decoded") == want.at("size"), "size");
    }
  const Encoded music = encode(c, "music", {c.data() + "/video/music.mp4"}, kLoose);
  expect_dropped(c, music, "music.mp4", "no video stream (only an attached picture)");
  c.expect(e.kept().size() == 1, "not exactly one clip is kept");
}

void no_duration(Case& c) {
  for (size_t i = 0; i < 2; ++i) {
    const Encoded e = encode(c, "cache" + std::to_string(i), {c.file(i)}, loose({"--num-frames", "21"}));
    const Json* clip = e.find(name_of(c.file(i)));
    if (!expect_clip(c, clip, 21, ints(c.check().at("stamps")))) continue;
    const double fps = clip->at("fps_decoded");
    c.expect(std::abs(21 / fps - 1.3125) < 0.01, "lasts " + std::to_string(21 / fps) + " s");
  }
}

void jitter(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()}, loose({"--fps", "16", "--num-frames", "81"}));
  const Json* clip = e.find("jitter.mkv");
  if (!c.expect(clip != nullptr && clip->at("status") == "retimed", "not re-timed")) return;
  const double fps = clip->at("fps_decoded");
  const int64_t n = clip->at("frames_retimed");
  c.expect(clip->at("frames_decoded") == 30 && fps >= 29 && fps <= 31, std::to_string(fps) + " frames a second");
  c.expect(n == 16 || n == 17, std::to_string(n) + " pictures");
  const std::vector<int> got = stamps_of(*clip);
  c.expect(got == ints(c.check().at("screen"), got.size()), "pictures " + shown(got));
  const RunResult r = c.run({"eval-vbench", c.file(), "--dimension", "temporal_flickering", "--json"});
  const Json scores = r.json();
  if (c.expect(scores.is_object(), "no scores")) {
    const double rate = scores.at("videos")[0].at("fps");
    c.expect(std::lround(rate / 8) == 4, "frame step " + std::to_string(std::lround(rate / 8)) + ", expected 4");
    char text[120];
    std::snprintf(text, sizeof text, "%.4g frames a second became %d pictures at 16; eval-vbench reads %.4g, hence a step of 4", fps, static_cast<int>(n), rate);
    c.saw(text);
  }
}

void gif(Case& c) {
  const Encoded a = encode(c, "delays", {c.file(0)}, loose({"--fps", "16", "--num-frames", "81"}));
  const Json* clip = a.find("delays.gif");
  expect_clip(c, clip, c.check().at("frames"), ints(c.check().at("delays_screen")));
  if (clip != nullptr) c.expect(clip->at("frames_retimed") == c.check().at("delays_screen").size(), "re-timed to " + clip->at("frames_retimed").dump());
  const Encoded b = encode(c, "zero", {c.file(1)}, loose({"--fps", "16", "--num-frames", "81"}));
  const Json* zero = b.find("zero-delay.gif");
  if (!c.expect(zero != nullptr, "not in the report")) return;
  c.expect(std::abs(zero->at("fps_decoded").get<double>() - c.check().at("zero_delay_fps").get<double>()) < 0.01, "rate " + zero->at("fps_decoded").dump());
  c.expect(warnings_of(*zero).find("0.1 s") != std::string::npos, "no note on the delay");
  c.saw("zero-delay.gif: " + warnings_of(*zero).substr(0, warnings_of(*zero).find('\n')));
}

void animated_webp(Case& c) {
  const std::string folder = c.work("clips");
  c.run({"mkdir", folder});
  c.copy(c.file(), "clips/animated.webp");
  c.copy(c.data() + "/video/bpyramid.mp4", "clips/other.mp4");
  const Encoded e = encode(c, "cache", {folder}, kLoose);
  c.expect_status(e.run, 0, "encode-clips");
  const Json* clip = e.find("animated.webp");
  if (!c.expect(clip != nullptr, "not in the report")) return;
  if (clip->at("status") != "dropped") c.expect(clip->at("frames_decoded") == c.check().at("frames_if_kept"), "taken as " + clip->at("frames_decoded").dump() + " pictures");
  else c.expect(reason_of(*clip).find("animated WebP") != std::string::npos && reason_of(*clip).find("convert") != std::string::npos, reason_of(*clip));
  c.expect(!e.kept().empty(), "the other clip is lost");
  c.saw(clip->at("status").get<std::string>() + ": " + reason_of(*clip));
}

void real(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()}, loose({"--fps", "16", "--num-frames", "81"}));
  const Json* clip = e.find(name_of(c.file()));
  if (!c.expect(clip != nullptr && clip->at("status") == "retimed", "not re-timed")) return;
  c.expect(clip->at("frames_decoded") == c.check().at("frames") && clip->at("frames_retimed") == c.check().at("out_frames_16fps"), clip->dump());
  const Json scores = c.run({"eval-vbench", c.file(), "--dimension", "temporal_flickering", "--json"}).json();
  if (!c.expect(scores.is_object(), "no scores")) return;
  const double value = scores.at("dimensions").at("temporal_flickering").at("raw"), want = c.check().at("temporal_flickering");
  c.expect(std::abs(value - want) <= c.check().at("tolerance").get<double>(), "temporal_flickering " + std::to_string(value));
  char text[100];
  std::snprintf(text, sizeof text, "%d pictures became %d; temporal_flickering %.6f (%.6f)", clip->at("frames_decoded").get<int>(), clip->at("frames_retimed").get<int>(), value, want);
  c.saw(text);
}

}  // namespace

void add_video_cases(CaseTable& table) {
  table["rot90"] = rotated;
  table["vfr"] = variable_rate;
  table["editlist"] = table["bpyramid"] = whole;
  table["avi-no-pts-header-lies"] = lying_header;
  table["odd-size"] = odd_size;
  table["hdr-10bit"] = high_dynamic_range;
  table["colour-tags"] = colour_tags;
  table["bad-files"] = bad_files;
  table["truncated"] = truncated;
  table["one-frame"] = one_frame;
  table["cover-art"] = cover_art;
  table["no-duration"] = no_duration;
  table["jitter-fps"] = jitter;
  table["gif"] = gif;
  table["animated-webp"] = animated_webp;
  table["real-tree"] = table["real-street"] = real;
}

}  // namespace megaslide::cases
