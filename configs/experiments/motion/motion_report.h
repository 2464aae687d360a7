// The experiment as text and as a picture.
#pragma once
#include <string>

#include "motion_runs.h"

namespace megaslide {

// Markdown: one table of losses and work, one of motion in predictions and samples, and what the columns are.
std::string motion_report(const MotionExperiment& experiment);
// SVG: the held-out loss over the steps, and the final losses against the attention's work.
std::string motion_chart(const MotionExperiment& experiment);

// The runs of one variant, a value each; runs without one are left out.
struct VariantRuns {
  std::string variant;
  std::vector<const MotionRun*> runs;

  template <class Value>
  Interval interval(const Value& value) const {
    std::vector<double> values;
    for (const MotionRun* run : runs)
      if (const double v = value(*run); v == v) values.push_back(v);
    return interval_of(values);
  }
};
std::vector<VariantRuns> by_variant(const MotionExperiment& experiment);

}  // namespace megaslide
