#include "data/report.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

using Json = nlohmann::ordered_json;

std::map<std::string, int64_t> bucket_counts(const EncodeReport& report) {
  std::map<std::string, int64_t> counts;
  for (const ClipReport& c : report.clips)
    if (c.facts.status != ClipStatus::kDropped) ++counts[c.facts.bucket()];
  return counts;
}

Json clip_json(const ClipReport& c) {
  const ClipFacts& f = c.facts;
  Json j = {{"path", c.path}};
  if (!c.place.empty()) j["place"] = c.place;
  j["caption"] = c.caption;
  j["status"] = clip_status_name(f.status);
  j["reason"] = f.reason;
  j["frames_declared"] = f.frames_declared;
  j["frames_decoded"] = f.frames_decoded;
  j["frames_retimed"] = f.frames_retimed;
  j["frames_used"] = f.frames_used;
  j["frames_left_over"] = f.status == ClipStatus::kDropped ? 0 : f.frames_retimed - f.frames_used;
  j["size_decoded"] = {f.width, f.height};
  j["size_used"] = {f.used_width, f.used_height};
  j["fps_decoded"] = f.fps;
  j["fps"] = f.used_fps;
  j["cuts"] = f.cuts;
  if (f.status == ClipStatus::kDropped) j["bucket"] = nullptr;
  else j["bucket"] = f.bucket();
  j["reused"] = c.reused;
  if (!c.key.empty()) j["key"] = c.key;
  if (!f.notes.empty()) j["warnings"] = f.notes;
  if (!c.md5.empty()) j["picture_md5"] = c.md5;
  if (!c.pictures.empty()) j["pictures"] = c.pictures;
  return j;
}

}  // namespace

std::string report_json(const EncodeReport& report) {
  Json clips = Json::array(), buckets = Json::array();
  for (const ClipReport& c : report.clips) clips.push_back(clip_json(c));
  for (const auto& [name, n] : bucket_counts(report)) buckets.push_back({{"bucket", name}, {"clips", n}});
  const Json j = {{"clips", clips}, {"kept", report.kept}, {"dropped", report.dropped}, {"encoded", report.encoded}, {"texts_encoded", report.texts_encoded}, {"buckets", buckets}, {"warnings", report.warnings}};
  return j.dump(1, ' ', false, Json::error_handler_t::replace);
}

std::string stages_text(const EncodeReport& report) {
  const StageSeconds& s = report.seconds;
  return fmt::format("{:.2f} s in all; hashing {:.2f} s, captions {:.2f} s, codec {:.2f} s, writing {:.2f} s; {} frames decoded ahead in {:.2f} s of one thread{}", s.wall, s.hash,
                     s.text, s.codec, s.write, s.frames_decoded, s.decode,
                     s.decode > 0 ? fmt::format(", {:.0f} a second", static_cast<double>(s.frames_decoded) / s.decode) : "");
}

std::string report_text(const EncodeReport& report) {
  std::string out;
  for (const ClipReport& c : report.clips) {
    const ClipFacts& f = c.facts;
    const std::string name = printable(c.place.empty() ? c.path : c.path + " (" + c.place + ")");
    if (f.status == ClipStatus::kDropped) out += fmt::format("{:8} {}: {}\n", "dropped", name, printable(f.reason));
    else out += fmt::format("{:8} {}: {}{}{}\n", clip_status_name(f.status), name, f.bucket(), f.reason.empty() ? "" : ", ", printable(f.reason));
  }
  for (const auto& [name, n] : bucket_counts(report)) out += fmt::format("bucket {}: {} clip{}\n", name, n, n == 1 ? "" : "s");
  out += fmt::format("{} kept ({} encoded, {} already in the cache), {} dropped\n", report.kept, report.encoded, report.kept - report.encoded, report.dropped);
  return out;
}

}  // namespace megaslide
