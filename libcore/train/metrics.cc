#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/disk_watch.h"
#include "base/error.h"
#include "base/log.h"
#include "base/svg.h"

namespace megaslide {
namespace {

std::string number(double x) { return std::isfinite(x) ? fmt::format("{:.9g}", x) : "null"; }

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  std::string line = fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"clipped":{},"skipped":{},"lr":{},"tokens":{},"seconds":{},"tokens_per_second":{},)"
      R"("mfu":{},"hfu":{},"waits":{{"upload":{},"download":{},"optimizer":{},"disk":{},"data":{}}},)"
      R"("host_rss_bytes":{},"device_peak_bytes":{},"host_peak_bytes":{})",
      m.step, number(m.loss), number(m.grad_norm), m.clipped, m.skipped, number(m.lr), m.tokens, number(m.seconds),
      number(m.tokens_per_second), number(m.mfu), number(m.hfu), number(m.wait_upload), number(m.wait_download),
      number(m.wait_optimizer), number(m.wait_disk), number(m.wait_data), m.host_rss_bytes, m.device_peak_bytes, m.host_peak_bytes);
  if (m.validation_loss) line += fmt::format(R"(,"validation_loss":{})", number(*m.validation_loss));
  return line + "}\n";
}

MetricsWriter::MetricsWriter(const std::string& directory, int64_t last_step) : directory_(directory) {
  const std::string path = directory_ + "/metrics.jsonl";
  std::error_code ec;
  if (std::filesystem::status(path, ec).type() == std::filesystem::file_type::not_found) return;
  const std::string text = read_file(path, int64_t{1} << 32);
  std::istringstream lines(text);
  std::string kept, line;
  while (std::getline(lines, line)) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    // A kill may leave half a line; a step after the checkpoint will be run again.
    if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer() || j["step"].get<int64_t>() > last_step) continue;
    kept += line + "\n";
    std::optional<double> validation;
    if (j.contains("validation_loss") && j["validation_loss"].is_number()) validation = j["validation_loss"].get<double>();
    remember(j["step"].get<int64_t>(), j.contains("loss") && j["loss"].is_number() ? j["loss"].get<double>() : std::nan(""), validation);
  }
  // The last line's end may be missing too.
  if (kept != text) write_file_atomic(path, kept);
}

void MetricsWriter::remember(int64_t step, double loss, std::optional<double> validation) {
  steps_.push_back(static_cast<double>(step));
  losses_.push_back(loss);
  if (!validation) return;
  validation_steps_.push_back(static_cast<double>(step));
  validation_losses_.push_back(*validation);
}

void MetricsWriter::write(const StepMetrics& m) {
  unwritten_ += to_json_line(m);
  remember(m.step, m.loss, m.validation_loss);
  try {
    append();
    failing_ = false;
  } catch (const Error& e) {
    if (!failing_) log_warning("the metrics of step {} failed, training goes on: {}", m.step, e.what());
    failing_ = true;
  }
}

void MetricsWriter::append() {
  const std::string path = directory_ + "/metrics.jsonl";
  const DiskOperation operation("write", path);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) throw system_error("open", path, errno);
  int failure = 0;
  // One write a line: a reader never sees half a line, short of a full disk.
  while (!unwritten_.empty() && failure == 0) {
    const ssize_t n = ::write(fd, unwritten_.data(), unwritten_.size());
    if (n > 0) unwritten_.erase(0, static_cast<size_t>(n));
    else if (n == 0) failure = EIO;
    else if (errno != EINTR) failure = errno;
  }
  if (close(fd) != 0 && failure == 0) failure = errno;
  if (failure) throw system_error("write", path, failure);
}

void MetricsWriter::flush() {
  const std::string path = directory_ + "/metrics.jsonl";
  if (!unwritten_.empty()) append();
  const DiskOperation operation("sync", path);
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;  // not a step yet
  if (fd < 0) throw system_error("open", path, errno);
  int failure = fsync(fd) == 0 ? 0 : errno;
  if (close(fd) != 0 && failure == 0) failure = errno;
  if (failure) throw system_error("write", path, failure);
}

void MetricsWriter::draw() const {
  std::vector<double> mean;
  double smooth = 0, weight = 0;
  for (const double loss : losses_) {
    // Exponential mean over about 20 steps, without the bias of its start.
    if (std::isfinite(loss)) {
      smooth = 0.95 * smooth + 0.05 * loss;
      weight = 0.95 * weight + 0.05;
    }
    mean.push_back(weight > 0 ? smooth / weight : std::nan(""));
  }
  std::vector<Series> series{{"loss", steps_, losses_, "#b8cbe0"}, {"mean", steps_, mean, "#1f5fa8"}};
  if (!validation_losses_.empty()) series.push_back({"validation", validation_steps_, validation_losses_, "#c2410c"});
  ChartOptions options;
  options.title = "Training loss";
  options.x_label = "step";
  options.y_label = "mean squared error of the velocity";
  options.log_y = true;
  write_file_atomic(directory_ + "/loss.svg", line_chart(options, series));
}

ResidentMemory resident_memory() {
  ResidentMemory r;
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("VmHWM:")) r.peak = std::stoll(line.substr(6)) * 1024;
    if (line.starts_with("VmRSS:")) r.now = std::stoll(line.substr(6)) * 1024;
  }
  return r;
}

}  // namespace megaslide
