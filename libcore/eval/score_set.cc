#include "eval/score_set.h"

#include <filesystem>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/unicode.h"
#include "base/utf8.h"
#include "eval/dimensions.h"
#include "eval/import.h"
#include "io/json.h"
#include "io/video.h"

namespace megaslide {
namespace {

std::string name_of(const std::string& path) {
  const std::string file = std::filesystem::path(path).filename().string();
  const size_t dot = file.rfind('.');
  // Frame folders have no extension, and prompts end with dots: only a known one is cut.
  return to_nfc(dot != std::string::npos && is_video_file_name(file) ? file.substr(0, dot) : file);
}

double value_of(const nlohmann::json& v) {
  if (v.is_number()) return v.get<double>();
  return v == "inf" ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
}

std::vector<std::pair<std::string, double>> videos_of(const nlohmann::json& dimension, const std::string& where) {
  const auto videos = dimension.is_object() ? dimension.find("videos") : dimension.end();
  if (!dimension.is_object() || videos == dimension.end() || !videos->is_array()) throw Error(where + ": no list of videos");
  std::vector<std::pair<std::string, double>> list;
  for (const auto& v : *videos) {
    if (!v.is_object() || !v.contains("path") || !v["path"].is_string() || !v.contains("value"))
      throw Error(where + ": expected videos with path and value");
    list.emplace_back(v["path"].get<std::string>(), value_of(v["value"]));
  }
  return list;
}

}  // namespace

void add_scores(ScoreSet& set, const std::string& dimension, const std::vector<std::pair<std::string, double>>& videos) {
  auto& scores = set.scores[dimension];
  std::set<std::string> twice;
  for (const auto& [path, value] : videos) {
    const std::string name = name_of(path);
    if (!scores.emplace(name, value).second) twice.insert(name);
  }
  for (const std::string& name : twice) {
    scores.erase(name);
    set.warnings.push_back(fmt::format("{}: {}: several videos are named {}: left out", set.label, dimension, quote_for_message(name)));
  }
}

void add_score_file(std::string_view text, const std::string& path, ScoreSet& set) {
  const nlohmann::json doc = parse_json(text, path);
  const auto dims = doc.is_object() ? doc.find("dimensions") : doc.end();
  if (dims != doc.end() && dims->is_object()) {
    for (const auto& [name, d] : dims->items())
      if (find_dimension(name) != nullptr) add_scores(set, name, videos_of(d, path + ": " + name));
    return;
  }
  std::map<std::string, ImportedScore> imported;
  import_scores_from(doc, path, imported, set.warnings);
  for (const auto& [name, s] : imported) add_scores(set, name, s.videos);
}

}  // namespace megaslide
