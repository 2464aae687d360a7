// metrics.jsonl and loss.svg of a run (fields: cli.md, finetune).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megaslide {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0, grad_norm = 0;
  bool clipped = false, skipped = false;
  double lr = 0;
  int64_t tokens = 0;  // of all microbatches, without padding
  double seconds = 0, tokens_per_second = 0, mfu = 0, hfu = 0;
  double wait_upload = 0, wait_download = 0, wait_optimizer = 0, wait_disk = 0, wait_data = 0;  // seconds the device stood still
  int64_t host_rss_bytes = 0, device_peak_bytes = 0, host_peak_bytes = 0;
  std::optional<double> validation_loss;
};

std::string to_json_line(const StepMetrics& m);  // with its newline; loss and norm are null where not finite

// Appends lines to DIR/metrics.jsonl. On resume, lines after `last_step` are those of steps that were lost: they go.
// A training does not end because a line of it cannot be written: the line is kept, and tried again with the next one.
class MetricsWriter {
 public:
  MetricsWriter(const std::string& directory, int64_t last_step);
  void write(const StepMetrics& m);
  // To the disk itself; throws Error where it cannot be.
  void flush();
  // DIR/loss.svg, atomically: training loss, its running mean, validation loss.
  void draw() const;

 private:
  void append();  // all that is unwritten; throws Error
  void remember(int64_t step, double loss, std::optional<double> validation);
  std::string directory_, unwritten_;
  bool failing_ = false;
  std::vector<double> steps_, losses_, validation_steps_, validation_losses_;
};

// Resident set of this process now and at its highest, bytes; from /proc/self/status.
struct ResidentMemory {
  int64_t now = 0, peak = 0;
};
ResidentMemory resident_memory();

}  // namespace megaslide
