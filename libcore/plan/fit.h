// The other way round: not whether a run fits, but what does.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace megaslide {

// With some settings over those of the run. Numbers are 0 where not even the smallest fits.
struct FitRow {
  std::string settings;           // "--set …"; empty: as the run says
  int64_t num_frames = 0;         // the longest clip of the run's picture size
  double num_frames_seconds = 0;  // its step
  int64_t width = 0, height = 0;  // the largest picture, of the run's proportions and length
  double size_seconds = 0;
};

// A preset at the run's clip size, or the next smaller one that it takes; settings as the run says.
struct FitModel {
  std::string name;
  int64_t parameters = 0;
  bool fits = false;
  double step_seconds = 0;
  int64_t num_frames = 0;
};

struct FitReport {
  int64_t num_frames = 0, width = 0, height = 0;  // of the run
  std::vector<FitRow> rows;      // as the run says, and with settings that cost time and spare memory
  std::vector<FitModel> models;  // presets, by size
};

// Searches as far as the model's positions reach.
FitReport find_what_fits(const PlanRequest& request, StopToken stop = {});

std::string to_json(const FitReport& report);
std::string to_text(const FitReport& report, const PlanRequest& request);

}  // namespace megaslide
