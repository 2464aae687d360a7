// Scores that VBench has written.
#include <cmath>

#include "eval/import.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::map<std::string, ImportedScore> scores;
  std::vector<std::string> warnings;
  if (!fuzz::accepts([&] { import_scores_of(fuzz::text_of(data, size), "x_eval_results.json", scores, warnings); })) return 0;
  MS_CHECK(!scores.empty());
  for (const auto& [name, s] : scores) {
    MS_CHECK(std::isfinite(s.raw), "{}", name);
    for (const auto& [video, value] : s.videos) MS_CHECK(std::isfinite(value), "{}", video);
  }
  for (const std::string& w : warnings) fuzz::require_printable(w);
  return 0;
}
