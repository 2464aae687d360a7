// Two sets of scores, video by video.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "eval/score_set.h"
#include "eval/statistics.h"

namespace megaslide {

// `path` is what report_json wrote, a VBench NAME_eval_results.json, a folder that holds one, or videos (evaluated with
// `options`). Two videos of one name cannot be paired and are left out, with a warning.
ScoreSet load_scores(const std::string& path, const EvalOptions& options, StopToken stop);

struct PairedDifference {
  std::string dimension;
  double mean_a = 0, mean_b = 0;             // over the pairs
  double difference = 0;                     // mean of b - a
  std::optional<Interval> ci95;              // paired bootstrap of the difference
  int64_t higher = 0, lower = 0, equal = 0;  // pairs where b is ...
  struct Pair {
    std::string name;
    double a, b;
  };
  std::vector<Pair> pairs;         // by name
  int64_t only_a = 0, only_b = 0;  // videos without a partner
};

struct Comparison {
  std::string a, b;
  std::vector<PairedDifference> dimensions;  // those that both have, in the order of dimensions()
  std::vector<std::string> warnings;
  uint64_t seed = 0;
};

// Throws Error when no dimension has a pair. Pairs with an infinite value (psnr of equal videos) are left out.
Comparison compare_scores(const ScoreSet& a, const ScoreSet& b, uint64_t seed);

std::string comparison_json(const Comparison& c);
std::string comparison_text(const Comparison& c);

}  // namespace megaslide
