// What the runs of the experiment left behind, as numbers. The folder is laid out by the Makefile:
//   held-out.safetensors, held-out/truth/NAME.json, prompts.txt           what is measured on
//   runs/VARIANT-SEED/metrics.jsonl, model/, predicted.safetensors,
//                     samples.safetensors (both may be missing: the oracle cannot sample)
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "motion_measure.h"

namespace megaslide {

// How well sprites can be followed in a set of clips: means over those that were found.
struct TrackScores {
  MeanOf found;     // 1 where a sprite's colour is there in five latent frames or more, else 0
  MeanOf error;     // pixels from where it should be, where that is known
  MeanOf residual;  // pixels off a smooth path
  MeanOf step;      // pixels from one latent frame to the next
};

struct MotionRun {
  std::string variant;
  int64_t seed = 0;
  std::vector<double> steps, validation;  // the curve of the clips that finetune held out
  double start = 0;                       // mean loss of the first steps
  bool finite = true;                     // every loss was, and no step was skipped
  double step_seconds = 0;                // median
  double attention_flops = 0;             // a token and layer, forward
  TokenLosses losses;
  // Cosines of what is predicted at noise levels of 0.5 and more; NaN, as the losses, where nothing was predicted.
  double predicted_still = std::numeric_limits<double>::quiet_NaN(), predicted_tracked = predicted_still;
  TrackScores predicted_tracks;                       // of sprites in what is predicted at a noise level of 0.7
  std::optional<double> sample_still;
  TrackScores samples;

  // Not finite, or at the end above its own start.
  bool diverged() const { return !finite || validation.empty() || !(validation.back() < start); }
};

// The same of the clips themselves, as the codec gives them back.
struct MotionTruthScores {
  double still = 0, tracked = 0;  // of all clips
  double sample_still = 0;        // of those whose captions are prompts
  TrackScores tracks;             // of these too
  TrackScores all_tracks;         // of all clips
  int64_t prompts = 0, clips = 0;
};

struct MotionExperiment {
  std::vector<MotionRun> runs;  // by variant in the order of kVariants, then by seed
  MotionTruthScores truth;
  int64_t steps = 0, batch = 0, tokens = 0;
};

// Attention of one layer by the project's formulas (train/flops.h): scores and sums, offset net and motion term, a token,
// forward; not the projections to q, k, v and out, which all variants share. Windows count in full size.
double attention_flops(const ModelConfig& model, int64_t frames, int64_t height, int64_t width);

// The variants by name, in the order of the report.
inline constexpr const char* kVariants[] = {"dense", "window", "zero-333", "zero-355", "zero-377", "rigid", "slice", "full", "slice-motion", "full-motion", "oracle"};

// Every trained run of the folder. Throws an Error where there is none.
MotionExperiment read_experiment(const std::string& folder);

}  // namespace megaslide
