// Scores that another program has computed, in VBench's result format.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace megaslide {

struct ImportedScore {
  double raw = 0;
  std::vector<std::pair<std::string, double>> videos;  // path, value; may be empty
  std::string file;
};

// {dimension: [score, [{"video_path", "video_results"}, ...]]} or {dimension: score}. An imaging_quality above 1 is
// divided by 100 (upstream scores single videos 0 to 100), and `warnings` says so. Throws Error for anything else: an
// unknown dimension, a score that is no finite number, a dimension in two files.
std::map<std::string, ImportedScore> import_scores(const std::vector<std::string>& paths,
                                                   std::vector<std::string>& warnings);

// One file, as text or parsed; adds to `scores`.
void import_scores_of(std::string_view text, const std::string& path, std::map<std::string, ImportedScore>& scores,
                      std::vector<std::string>& warnings);
void import_scores_from(const nlohmann::json& doc, const std::string& path, std::map<std::string, ImportedScore>& scores,
                        std::vector<std::string>& warnings);

}  // namespace megaslide
