// Scores by dimension and video, whoever computed them.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megaslide {

// dimension -> name of the video ("{prompt}-{index}", NFC, without folder and extension) -> value
struct ScoreSet {
  std::string label;
  std::map<std::string, std::map<std::string, double>> scores;
  std::vector<std::string> warnings;
};

// Values by path. Two videos of one name cannot be told apart: both are left out, with a warning.
void add_scores(ScoreSet& set, const std::string& dimension, const std::vector<std::pair<std::string, double>>& videos);

// The text of what report_json wrote (infinite values are there as "inf", missing ones as null) or of a VBench
// NAME_eval_results.json. Dimensions of a report that are unknown here are passed over. Throws Error "PATH: …".
void add_score_file(std::string_view text, const std::string& path, ScoreSet& set);

}  // namespace megaslide
