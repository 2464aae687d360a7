// The evaluation of a set of videos: inputs, name audit, one decoding a video, scores, totals. Reports are report.h's.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "eval/dimensions.h"
#include "eval/inputs.h"
#include "eval/measure.h"
#include "eval/names.h"
#include "eval/networks.h"
#include "eval/statistics.h"
#include "kernels/stream.h"

namespace megaslide {

struct EvalOptions {
  std::vector<std::string> inputs;      // collect_inputs()
  std::vector<std::string> dimensions;  // empty: all that can be computed
  std::string weights;                  // folder with networks, or empty
  std::string prompts;                  // read_prompts(), or empty: custom mode, no audit
  int64_t videos_a_prompt = 5;
  std::string reference;             // assign_references(), or empty
  std::vector<std::string> imports;  // VBench result files with scores of other dimensions
  bool clamp = false;                // of normalised scores
  uint64_t seed = 0;                 // of the bootstrap
  int threads = 1;
  bool thumbnails = false;  // keep pictures of the worst videos
  bool static_filter = false;  // temporal_flickering of the first five static videos of a prompt alone
  bool compat = false;      // colours as OpenCV reads them (VideoColour::kBt601)
  std::string cache;        // folder for the scores of networks (score_cache.h); empty: none
  DType compute = DType::kF32;  // of the networks' products, where they can choose: kF32 or kBF16
  Backend backend = Backend::kCpu;  // where networks compute: kCpu or kCuda
};

struct EvaluatedVideo {
  VideoItem item;
  std::string skipped;  // why it could not be read; empty: it was
  VideoMeasures measures;
};

struct ScoredVideo {
  size_t video;  // index into Evaluation::videos
  double value;
};

struct SkippedVideo {
  size_t video;
  std::string reason;
};

struct DimensionResult {
  std::string name;
  double raw = 0;                    // mean over videos; +infinity for psnr of equal videos
  std::optional<double> normalised;  // nullopt for psnr, ssim
  double weight = 0;
  std::optional<Interval> ci95;     // of raw, bootstrap over videos
  std::vector<ScoredVideo> videos;  // in the order of Evaluation::videos
  std::vector<SkippedVideo> skipped;
  std::vector<size_t> worst;  // up to five indices into Evaluation::videos, worst first
  std::string imported_from;  // the file, for an imported score (then `imported` holds its videos)
  std::vector<std::pair<std::string, double>> imported;
  size_t count() const { return imported_from.empty() ? videos.size() : imported.size(); }
};

struct Evaluation {
  EvalOptions options;
  std::vector<EvaluatedVideo> videos;
  std::optional<NameAudit> audit;
  std::vector<DimensionResult> dimensions;  // in the order of dimensions()
  Aggregate aggregate;
  std::map<std::string, std::string> withheld;  // dimension, quality, semantic, total -> reason
  std::vector<std::string> warnings;
  std::vector<std::string> ignored;  // files that are no videos
  std::map<std::string, UsedNetwork> networks;  // what scored them
  // Alarms over all videos: kind -> indices of the videos.
  std::map<std::string, std::vector<size_t>> alarms;

  const DimensionResult* find(const std::string& name) const;
};

// Throws Error for wrong options, an unreadable manifest, prompt or import file, and when no input names a video. A
// video that cannot be read is skipped by name; the result does not depend on the number of threads.
Evaluation evaluate(const EvalOptions& options, StopToken stop = {});

// A threshold: the raw score of a dimension, or quality, semantic, total.
struct Threshold {
  std::string name;
  double least;
};
Threshold parse_threshold(const std::string& text);  // "temporal_flickering=0.95"; usage Error
std::vector<Threshold> parse_thresholds(const std::vector<std::string>& texts);
// One line for each threshold that is not reached, or whose score is withheld.
std::vector<std::string> failed_thresholds(const Evaluation& e, const std::vector<Threshold>& thresholds);

// What the program answers: 0, or 3 where a threshold failed, or videos of the prompts are missing, extra or double and
// that is not allowed (each with a warning that says so). Throws Error when not one score could be computed.
int finish_evaluation(const Evaluation& e, const std::vector<Threshold>& thresholds, bool allow_partial);

std::string megaslide_version();

}  // namespace megaslide
