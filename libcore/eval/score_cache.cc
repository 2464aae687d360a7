#include "eval/score_cache.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "eval/dimensions.h"
#include "io/json.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Raised when a dimension's arithmetic changes.
constexpr const char* kFormat = "megaslide score 1";

Json json_of(const Score& s) {
  Json trace = Json::array();
  for (const double v : s.trace) trace.push_back(std::isfinite(v) ? Json(v) : Json());
  return {{"format", kFormat},       {"value", s.value ? Json(*s.value) : Json()}, {"reason", s.reason}, {"trace", std::move(trace)},
          {"label", s.trace_label}, {"extra", s.extra},                            {"weight", s.weight}};
}

Score score_of(const Json& j) {
  Score s;
  if (!j.at("value").is_null()) s.value = j.at("value").get<double>();
  s.reason = j.at("reason").get<std::string>();
  for (const Json& v : j.at("trace")) s.trace.push_back(v.is_null() ? std::numeric_limits<double>::quiet_NaN() : v.get<double>());
  s.trace_label = j.at("label").get<std::string>();
  s.extra = j.at("extra").get<std::map<std::string, double>>();
  s.weight = j.at("weight").get<double>();
  return s;
}

bool depends_on_prompt(std::string_view dimension) { return dimension == "temporal_style" || dimension == "overall_consistency"; }

}  // namespace

ScoreCache::ScoreCache(std::string folder) : folder_(std::move(folder)) {
  std::error_code ec;
  fs::create_directories(folder_, ec);
  if (ec || !fs::is_directory(folder_)) throw Error(fmt::format("{}: cannot be made a folder for scores", folder_), "name another with --cache");
}

std::string ScoreCache::path_of(const std::string& key) const { return (fs::path(folder_) / (key + ".json")).string(); }

std::optional<Score> ScoreCache::find(const std::string& key) const {
  std::error_code ec;
  if (!keeps() || !fs::exists(path_of(key), ec)) return std::nullopt;
  try {
    const Json j = read_json(path_of(key));
    if (j.at("format") == kFormat) return score_of(j);
  } catch (const Error& e) {
    log_warning("{}: not used: {}", path_of(key), e.message());
  } catch (const Json::exception&) {
    log_warning("{}: no score; it is computed again", path_of(key));
  }
  return std::nullopt;
}

void ScoreCache::store(const std::string& key, const Score& score) const {
  if (keeps()) write_file_atomic(path_of(key), json_of(score).dump() + "\n");
}

std::string video_content_hash(const std::string& path) {
  if (!fs::is_directory(path)) return sha256_file(path);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Sha256 hash;
  for (const fs::path& file : files) hash.update(file.filename().string() + "\n" + sha256_file(file.string()) + "\n");
  return hash.hex();
}

std::vector<std::string_view> networks_of(const std::string& dimension, const MetricContext& context) {
  if (dimension == "temporal_flickering" && context.static_filter) return {"raft_things"};
  return find_dimension(dimension)->networks;
}

std::string score_key(const std::string& content, const std::string& dimension, const EvalNetworks& networks, const MetricContext& context) {
  const std::string name(shared_metric(dimension));
  std::string text = fmt::format("{}\n{}\n{}\n{}\n", kFormat, content, name, dtype_name(networks.compute()));
  if (networks.on_device()) text += "device\n";  // whose roundings differ
  for (const std::string_view n : networks_of(name, context)) text += networks.used().at(std::string(n)).sha256 + "\n";
  const bool style = name == "appearance_style";
  if (style || depends_on_prompt(name)) {
    const auto vocabulary = networks.used().find("clip_vocabulary");
    text += fmt::format("{}\n{}", vocabulary == networks.used().end() ? "" : vocabulary->second.sha256, style ? context.style : context.prompt);
  }
  return sha256_hex(text);
}

}  // namespace megaslide
