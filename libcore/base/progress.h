// Progress of long work. Library code reports; a program installs a sink that draws (tools/common). Without a sink
// nothing happens.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace megaslide {

struct ProgressEvent {
  std::string label;      // what is being done: "shard"
  double done = 0;        // in `unit`
  double total = 0;       // 0 when unknown
  std::string unit;       // "tensors", "bytes", "steps"; bytes are meant to be shown as MB, GB
  double seconds = 0;     // since the start
  double rate = 0;        // units a second, lately; 0 while unknown
  double eta = -1;        // seconds until the end; negative while unknown
  bool finished = false;  // the last event of this progress
  std::string detail;     // free text beside the figures: "loss 0.31", a file name
};

using ProgressSink = std::function<void(const ProgressEvent&)>;

// Replaces the sink; returns the one before. Call before threads start. The sink may be called from any thread, one
// call at a time.
ProgressSink set_progress_sink(ProgressSink sink);

// Rate and remaining time from (time, done) pairs: an exponentially weighted mean of the rate with a time constant of
// `window` seconds, so that a change of speed shows within seconds and single slow pieces do not make the estimate jump.
class RateEstimator {
 public:
  explicit RateEstimator(double window_seconds = 15) : window_(window_seconds) {}
  // `seconds` since the start, not decreasing; `done` not decreasing. Anything else restarts the estimate.
  void add(double seconds, double done);
  double rate() const;                           // 0 while unknown
  double eta(double done, double total) const;  // seconds; negative while unknown, 0 when done >= total > 0

 private:
  double window_;
  double seconds_ = 0, done_ = 0;     // the last pair
  double weight_ = 0, weighted_ = 0;  // decayed sums of seconds and of units
  double pending_ = 0;                // units of the next interval
};

// One piece of long work:
//   Progress progress("shard", entries.size(), "tensors");
//   for (...) progress.update(++done, name);
// The last event is sent by finish() or the destructor. Events are at least `kInterval` seconds apart.
class Progress {
 public:
  Progress(std::string label, double total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double done, const std::string& detail = {});  // not thread-safe: one owner
  void add(double units, const std::string& detail = {}) { update(event_.done + units, detail); }
  void set_total(double total) { event_.total = total; }  // as it becomes known; shown with the next update
  void finish();

 private:
  static constexpr double kInterval = 0.1;
  void send();

  ProgressEvent event_;
  RateEstimator rate_;
  std::chrono::steady_clock::time_point start_;
  double last_sent_ = -1;
};

}  // namespace megaslide
