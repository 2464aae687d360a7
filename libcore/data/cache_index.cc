#include "data/cache_index.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"

namespace megaslide {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "megaslide-cache";

bool is_plain_name(const std::string& key) {
  return !key.empty() && key.find('/') == std::string::npos && key.find('\0') == std::string::npos && key[0] != '.';
}

CachedClip parse_clip(const nlohmann::json& json, const std::string& source) {
  CachedClip c;
  JsonFields f(json, source);
  f.read("key", c.key);
  f.read("path", c.path);
  f.read("caption", c.caption);
  std::array<int64_t, 4> latent{};
  f.read("latent", latent);
  c.latent.assign(latent.begin(), latent.end());
  f.read("text_rows", c.text_rows);
  f.read("frames", c.frames);
  std::array<int64_t, 2> size{};
  f.read("size", size);
  c.width = size[0];
  c.height = size[1];
  f.read("fps", c.fps);
  if (const nlohmann::json* cuts = f.find("latent_cuts")) {
    int64_t before = 0;
    for (const auto& cut : cuts->is_array() ? *cuts : nlohmann::json::array({-1})) {
      c.latent_cuts.push_back(cut.is_number_integer() ? cut.get<int64_t>() : -1);
      if (c.latent_cuts.back() <= before || c.latent_cuts.back() >= latent[1]) {
        f.problem("latent_cuts: must be a list of ascending latent frames of the clip");
        break;
      }
      before = c.latent_cuts.back();
    }
  }
  f.read("source_bytes", c.source_bytes);
  f.read("source_sha256", c.source_sha256);
  f.allow_unknown();
  if (!is_plain_name(c.key)) f.problem("key: not a file name");
  for (const int64_t d : latent)
    if (d < 1 || d > (int64_t{1} << 20)) f.problem("latent: sizes must be 1 to 1048576");
  if (c.text_rows < 0) f.problem("text_rows: must not be negative");
  f.finish();
  return c;
}

}  // namespace

CacheIndex parse_cache_index(std::string_view text, const std::string& source) {
  const nlohmann::json json = parse_json(text, source);
  CacheIndex index;
  JsonFields f(json, source);
  std::string format;
  int64_t version = 0;
  f.read("format", format);
  f.read("version", version);
  f.read("codec", index.identity.codec);
  f.read("text_encoder", index.identity.text_encoder);
  const nlohmann::json& clips = f.array("clips");
  f.allow_unknown();
  if (format != kFormat || version != 1) f.problem(fmt::format("expected format \"{}\", version 1", kFormat));
  f.finish();
  for (const nlohmann::json& c : clips) index.clips.push_back(parse_clip(c, fmt::format("{}: clips[{}]", source, index.clips.size())));
  return index;
}

std::string cache_index_text(const CacheIndex& index) {
  Json list = Json::array();
  for (const CachedClip& c : index.clips)
    list.push_back({{"key", c.key}, {"path", c.path}, {"caption", c.caption}, {"latent", c.latent}, {"text_rows", c.text_rows},
                    {"frames", c.frames}, {"size", {c.width, c.height}}, {"fps", c.fps}, {"latent_cuts", c.latent_cuts}, {"source_bytes", c.source_bytes},
                    {"source_sha256", c.source_sha256}});
  const Json json = {{"format", kFormat}, {"version", 1}, {"codec", index.identity.codec}, {"text_encoder", index.identity.text_encoder}, {"empty_text", kEmptyTextFile}, {"clips", list}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace megaslide
