#include "eval/import.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "eval/dimensions.h"
#include "io/json.h"

namespace megaslide {
namespace {

using Json = nlohmann::json;

double number_of(const Json& v, const std::string& where) {
  if (v.is_boolean()) return v.get<bool>() ? 1 : 0;
  if (!v.is_number()) throw Error(fmt::format("{}: expected a number", where));
  const double x = v.get<double>();
  if (!std::isfinite(x)) throw Error(fmt::format("{}: not finite", where));
  return x;
}

ImportedScore score_of(const std::string& name, const Json& v, const std::string& file) {
  const std::string where = fmt::format("{}: {}", file, name);
  ImportedScore s;
  s.file = file;
  if (!v.is_array()) {
    s.raw = number_of(v, where);
    return s;
  }
  if (v.empty()) throw Error(fmt::format("{}: expected [score, videos]", where));
  s.raw = number_of(v[0], where);
  if (v.size() < 2 || !v[1].is_array()) return s;
  for (const Json& e : v[1]) {
    if (!e.is_object()) continue;
    const auto path = e.find("video_path"), value = e.find("video_results");
    // Detectors store lists or labels here; only the mean counts then.
    if (path == e.end() || !path->is_string() || value == e.end() || !(value->is_number() || value->is_boolean()))
      continue;
    s.videos.emplace_back(path->get<std::string>(), number_of(*value, where));
  }
  return s;
}

}  // namespace

void import_scores_from(const Json& doc, const std::string& path, std::map<std::string, ImportedScore>& scores,
                        std::vector<std::string>& warnings) {
  if (!doc.is_object() || doc.empty()) {
    throw Error(fmt::format("{}: expected an object of dimensions", path), "give a VBench NAME_eval_results.json");
  }
  for (const auto& [name, value] : doc.items()) {
    try {
      require_dimension(name);
    } catch (Error& e) {
      throw e.add_context(path);
    }
    ImportedScore s = score_of(name, value, path);
    if (name == "imaging_quality") {
      if (s.raw > 1) {
        warnings.push_back(
            fmt::format("{}: imaging_quality {:g} is on the 0-100 scale of single videos; taken as {:g}", path, s.raw,
                        s.raw / 100));
        s.raw /= 100;
      }
      for (auto& [video, v] : s.videos) v /= 100;
    }
    if (std::fabs(s.raw) > 1 && name != "psnr") {
      throw Error(fmt::format("{}: {}: {:g} is no raw score, which lies in 0..1", path, name, s.raw),
                  "give the raw scores, not percentages");
    }
    if (!scores.emplace(name, std::move(s)).second) {
      throw Error(fmt::format("{}: {} was imported before, from {}", path, name, scores.at(name).file));
    }
  }
}

void import_scores_of(std::string_view text, const std::string& path, std::map<std::string, ImportedScore>& scores,
                      std::vector<std::string>& warnings) {
  import_scores_from(parse_json(text, path), path, scores, warnings);
}

std::map<std::string, ImportedScore> import_scores(const std::vector<std::string>& paths,
                                                   std::vector<std::string>& warnings) {
  std::map<std::string, ImportedScore> scores;
  for (const std::string& path : paths) import_scores_of(read_file(path, kMaxJsonBytes), path, scores, warnings);
  return scores;
}

}  // namespace megaslide
