// One score of one video. A metric sees every picture once, in order; all metrics of a video share one decoding.
// A new metric is one file here, an entry in metric_names() and a row in dimensions.cc.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "io/video.h"

namespace megaslide {

struct FrameContext {
  int64_t index;  // from 0
  const Picture& picture;
  const Picture* previous;   // null at the first picture; same size
  uint64_t difference;       // sum over all bytes of |picture - previous|; 0 at the first
  const Picture* reference;  // the reference's picture of the same index, same size; null where there is none
  ThreadPool& pool;
};

struct Score {
  std::optional<double> value;     // nullopt: not applicable, `reason` says why; may be +infinity (psnr)
  std::string reason;              // "n/a: needs at least 2 frames"
  std::vector<double> trace = {};  // one value a frame, NaN where a frame has none
  std::string trace_label = {};    // what the trace holds, with its unit
  std::map<std::string, double> extra = {};
  double weight = 1;  // of this video in the dimension's mean: VBench averages some dimensions over frames
};

class Metric {
 public:
  virtual ~Metric() = default;
  virtual void add(const FrameContext& frame) = 0;
  // What a metric can choose only when it knows how many frames there are: their indices, ascending, asked for after the last
  // add(); the video is decoded again and add_again() called with each.
  virtual std::vector<int64_t> frames_again(int64_t /*count*/) { return {}; }
  virtual void add_again(int64_t /*index*/, const Picture&, ThreadPool&) {}
  virtual Score finish() = 0;  // once, after the last picture
};

class EvalNetworks;

// What a metric knows of its video besides frames.
struct MetricContext {
  const EvalNetworks* networks = nullptr;  // those that its dimensions need have been loaded
  std::string prompt = {}, style = {};     // empty: none
  double fps = 0;                          // 0: unknown
  bool static_filter = false;              // temporal_flickering of static videos alone
};

// Metrics that can be computed here: names of dimensions.
const std::vector<std::string_view>& metric_names();
bool metric_needs_reference(std::string_view name);
// CHECKs the name.
std::unique_ptr<Metric> make_metric(std::string_view name, const MetricContext& context = {});
// Dimensions of one value, which one metric serves: the first of their names.
std::string_view shared_metric(std::string_view name);

// temporal_flickering: (255 - mean over neighbours of the mean |F_i+1 - F_i| over all bytes) / 255, from integer sums.
std::unique_ptr<Metric> make_flicker_metric();
// psnr: mean over frames of 10 log10(255^2 / MSE), MSE over all bytes; extra "pooled" is the same from the mean MSE.
std::unique_ptr<Metric> make_psnr_metric();
// ssim: mean over frames; not applicable to pictures with a side below 11.
std::unique_ptr<Metric> make_ssim_metric();

}  // namespace megaslide
