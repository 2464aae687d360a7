// One pass over one video: every metric, alarm and curve from a single decoding, three pictures in memory. Some metrics choose
// frames when they know how many there are: for those the video is decoded once more.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "eval/alarms.h"
#include "eval/drift.h"
#include "eval/metric.h"

namespace megaslide {

struct VideoFacts {
  int64_t width = 0, height = 0, frames = 0;  // frames: decoded, not what the header claims
  double fps = 0;                             // 0: unknown (a folder of pictures)
  std::string codec;
  int64_t declared_frames = 0;  // by the header; 0: it states none
};

struct Thumbnail {
  Picture picture;  // at most 192 pixels a side
  std::string caption;
};

struct VideoMeasures {
  VideoFacts facts;
  std::map<std::string, Score> scores;  // by metric name
  std::vector<Alarm> alarms;
  DriftCurve drift;
  std::vector<double> times;       // seconds, one a frame
  std::vector<double> brightness;  // mean of all bytes, 0 .. 255, one a frame
  std::vector<std::string> warnings;
  std::vector<Thumbnail> thumbnails;  // first frame, the two around the largest jump, last frame
};

// Opens a video or throws.
using OpenVideo = std::function<std::unique_ptr<VideoReader>()>;

struct MeasureOptions {
  std::vector<std::string> metrics;  // of metric_names()
  MetricContext context = {};
  OpenVideo open_again = {};  // the video, for metrics that choose frames by their count
  bool thumbnails = false;
};

// Reads `video` to its end, and `open_reference()`, when given, beside it. A reference that cannot be read, has another
// size, or ends early costs psnr and ssim (or the frames beyond its end), never the rest; `warnings` says so. Throws
// Error when the video is damaged, has no frame, or changes its size.
VideoMeasures measure_video(VideoReader& video, const OpenVideo& open_reference, const MeasureOptions& options,
                            ThreadPool& pool);

}  // namespace megaslide
