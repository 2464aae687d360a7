// Results that are compared: an evaluation's report, or VBench's.
#include "eval/dimensions.h"
#include "eval/score_set.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ScoreSet set;
  set.label = "a";
  if (!fuzz::accepts([&] { add_score_file(fuzz::text_of(data, size), "eval.json", set); })) return 0;
  for (const auto& [dimension, scores] : set.scores) {
    MS_CHECK(find_dimension(dimension) != nullptr, "{}", dimension);
    for (const auto& [name, value] : scores) MS_CHECK(name.find('/') == std::string::npos, "{}", name);
  }
  for (const std::string& w : set.warnings) fuzz::require_printable(w);
  return 0;
}
