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
#include "base/error.h"
#include "base/svg.h"

namespace megaslide {
namespace {

std::string number(double x) { return std::isfinite(x) ? fmt::format("{:.9g}", x) : "null"; }

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  std::string line = fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"clipped":{},"skipped":{},"lr":{},"tokens":{},"seconds":{},"tokens_per_second":{},)"
      R"("mfu":{},"hfu":{},"waits":{{"upload":{},"download":{},"optimizer":{},"data":{}}},)"
      R"("host_rss_bytes":{},"device_peak_bytes":{},"host_peak_bytes":{})",
      m.step, number(m.loss), number(m.grad_norm), m.clipped, m.skipped, number(m.lr), m.tokens, number(m.seconds),
      number(m.tokens_per_second), number(m.mfu), number(m.hfu), number(m.wait_upload), number(m.wait_download),
      number(m.wait_optimizer), number(m.wait_data), m.host_rss_bytes, m.device_peak_bytes, m.host_peak_bytes);
  if (m.validation_loss) line += fmt::format(R"(,"validation_loss":{})", number(*m.validation_loss));
  return line + "}\n";
}

MetricsWriter::MetricsWriter(const std::string& directory, int64_t last_step) : directory_(directory) {
  const std::string path = directory_ + "/metrics.jsonl";
  if (!std::filesystem::exists(path)) return;
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
  const std::string path = directory_ + "/metrics.jsonl", line = to_json_line(m);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) throw system_error("open", path, errno);
  // One write a line: a reader never sees half a line, short of a full disk.
  const ssize_t n = ::write(fd, line.data(), line.size());
  const int failure = n == static_cast<ssize_t>(line.size()) ? 0 : (n < 0 ? errno : ENOSPC);
  close(fd);
  if (failure) throw system_error("write", path, failure, "free space on the disk of output.output_dir; the run can be resumed");
  remember(m.step, m.loss, m.validation_loss);
}

void MetricsWriter::flush() const {
  const std::string path = directory_ + "/metrics.jsonl";
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;  // not a step yet
  if (fd < 0) throw system_error("open", path, errno);
  const int failure = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  if (failure) throw system_error("write", path, failure, "free space on the disk of output.output_dir; the run can be resumed");
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
