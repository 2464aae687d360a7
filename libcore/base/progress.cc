#include "base/progress.h"

#include <cmath>
#include <mutex>
#include <utility>

namespace megaslide {
namespace {
std::mutex sink_mutex;
ProgressSink& sink() {
  static ProgressSink s;
  return s;
}
}  // namespace

ProgressSink set_progress_sink(ProgressSink s) {
  std::lock_guard lock(sink_mutex);
  return std::exchange(sink(), std::move(s));
}

void RateEstimator::add(double seconds, double done) {
  const double dt = seconds - seconds_, dn = done - done_;
  if (dt < 0 || dn < 0) weight_ = weighted_ = pending_ = 0;
  seconds_ = seconds;
  done_ = done;
  if (dt <= 0 || dn < 0) {
    // Work that took no measurable time still counts towards the next interval.
    if (dt == 0 && dn > 0) pending_ += dn;
    return;
  }
  const double keep = std::exp(-dt / window_);
  weight_ = weight_ * keep + dt;
  weighted_ = weighted_ * keep + dn + pending_;
  pending_ = 0;
}

double RateEstimator::rate() const { return weight_ > 0 ? weighted_ / weight_ : 0; }

double RateEstimator::eta(double done, double total) const {
  if (total <= 0) return -1;
  if (done >= total) return 0;
  const double r = rate();
  return r > 0 ? (total - done) / r : -1;
}

Progress::Progress(std::string label, double total, std::string unit) : start_(std::chrono::steady_clock::now()) {
  event_.label = std::move(label);
  event_.total = total;
  event_.unit = std::move(unit);
}

Progress::~Progress() { finish(); }

void Progress::update(double done, const std::string& detail) {
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  event_.done = done;
  event_.seconds = now;
  event_.detail = detail;
  rate_.add(now, done);
  if (last_sent_ >= 0 && now - last_sent_ < kInterval) return;
  last_sent_ = now;
  send();
}

void Progress::finish() {
  if (event_.finished) return;
  event_.finished = true;
  event_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  send();
}

void Progress::send() {
  event_.rate = rate_.rate();
  event_.eta = event_.finished ? 0 : rate_.eta(event_.done, event_.total);
  std::lock_guard lock(sink_mutex);
  if (sink()) sink()(event_);
}

}  // namespace megaslide
