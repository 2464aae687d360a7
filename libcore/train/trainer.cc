#include "train/trainer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <numeric>

#include "base/atomic_file.h"
#include "base/disk_watch.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "config/load.h"
#include "device/trace.h"
#include "diffusion/video_sampler.h"
#include "io/open_model.h"
#include "model/wan.h"
#include "train/checkpoint.h"
#include "train/flops.h"
#include "train/learning_rate.h"
#include "train/objective.h"
#include "train/resume.h"
#include "train/sample_in_training.h"
#include "train/setup.h"
#include "train/training_data.h"

namespace megaslide {
namespace {

// One run at a time writes to an output directory.
class OutputLock {
 public:
  explicit OutputLock(const std::string& directory) {
    make_directories(directory, "choose another output.output_dir, or make its parent writable");
    const std::string path = directory + "/.lock";
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw system_error("open", path, errno, "choose another output.output_dir, or make it writable");
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      close(fd_);
      throw Error(directory + ": another run is writing here", "wait for it, or choose another output.output_dir");
    }
  }
  ~OutputLock() { close(fd_); }
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  int fd_;
};

double mean_of_end(const std::vector<double>& x, bool front) {
  const size_t n = std::min<size_t>(10, x.size());
  if (n == 0) return 0;
  const auto begin = front ? x.begin() : x.end() - static_cast<std::ptrdiff_t>(n);
  return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(n), 0.0) / static_cast<double>(n);
}

// The network that the run trains: the model's only one, or one of two.
ModelDirectory network_to_train(const ModelDirectory& model, const RunConfig& run) {
  require_expert(run, model.config());
  return run.model.expert ? networks_of(model)[run.model.expert == RunConfig::Expert::kLow ? 1 : 0] : model;
}

// Sizes are the network's, what goes with it is the whole model's.
ModelConfig config_of(const ModelDirectory& network, const ModelDirectory& model) {
  ModelConfig c = model.config();
  const ModelConfig& n = network.config();
  c.dim = n.dim, c.heads = n.heads, c.ffn_dim = n.ffn_dim, c.layers = n.layers;
  c.in_channels = n.in_channels, c.out_channels = n.out_channels;
  c.attention = n.attention;
  return c;
}

class Trainer {
 public:
  Trainer(const RunConfig& run, const TrainerOptions& options)
      : run_(run), options_(options),
        disk_watch_(run.train.stall_timeout, "look into the system's log (dmesg); the run can be resumed. If the disk is merely slow, raise train.stall_timeout"),
        lock_(run.output.output_dir), model_(run.model.path), weights_(network_to_train(model_.directory(), run)),
        config_(with_overrides(config_of(weights_, model_.directory()), run)), parts_(parts_of(model_.directory())),
        texts_(encode_sample_prompts(run, parts_, options.threads)), checkpoints_(run.output.output_dir),
        network_(make_wan_network(config_, run.model.fp8_forward)), data_(open_training_data(run, config_, parts_)),
        store_(network_, host_store_options(run, false)),
        device_(device_of_run()), pool_(options.threads) {
    for (const auto& line : data_->summary()) log_info("{}", line);
    if (store_.tier()) log_info("{}", store_.tier()->describe());
    run_.train.max_train_steps = data_->last_step();
    state_.seed = run.train.seed;
    state_.config = run_lines(run_);
    state_.data = data_keys(data_->keys());
    load();
    fill_manifest();
    step_ = std::make_unique<TrainStep>(
        *device_, network_, store_,
        pipeline_options(run_, config_, data_->shapes(), sampling_shapes(run_, config_, network_), data_->max_microbatches()), optimizer_options(run_),
        state_.updates);
    metrics_ = std::make_unique<MetricsWriter>(run_.output.output_dir, state_.step);
  }

  TrainSummary run(const std::function<void(const StepMetrics&)>& on_step) {
    summary_.resumed_from = state_.step;
    summary_.first_step = state_.step + 1;
    const int64_t last = run_.train.max_train_steps;
    Progress progress("train", static_cast<double>(last - state_.step), "steps");
    std::vector<HostBatch> next = state_.step < last ? batches_of(*data_, state_.step + 1) : std::vector<HostBatch>{};
    double boundary = device_->now();
    while (state_.step < last && !options_.stop.requested()) {
      const std::vector<HostBatch> batches = std::move(next);
      StepMetrics m = issue_and_wait(batches, last, next);
      const double begun = std::exchange(boundary, device_->now());
      m.seconds = boundary - begun;
      finish_metrics(m, batches);
      if (!options_.trace_path.empty())
        trace_steps_.push_back({m.step, begun, boundary, m.wait_upload, m.wait_download, m.wait_optimizer, m.wait_disk, m.wait_data});
      if (validation_due(last)) m.validation_loss = validate();
      metrics_->write(m);
      if (on_step) on_step(m);
      progress.update(static_cast<double>(state_.step - summary_.resumed_from), fmt::format("loss {:.4f}", m.loss));
      const bool save = due(run_.output.save_every_n_steps) || state_.step == last || options_.stop.requested();
      const bool draw = !run_.sample.prompts.empty() && (due(run_.sample.every_n_steps) || state_.step == last);
      if (save) checkpoint();
      if (draw) sample();
      if (!save && !draw && !m.validation_loss) continue;
      // Validation, checkpoints and samples are no part of the next step: neither their time, nor their work and waits.
      boundary = device_->now();
      device_->take_times();
    }
    progress.finish();
    close();
    return summary_;
  }

 private:
  std::unique_ptr<Device> device_of_run() const {
    CpuDeviceOptions o = cpu_device_options(run_, options_.threads, !options_.trace_path.empty());
    o.jitter = options_.jitter;
    if (run_.model.fp8_forward && options_.backend == Backend::kCuda) require_fp8_products(cuda_device_info(-1));
    return make_device(options_.backend, o);
  }

  // What must be equal where a run is resumed. A schedule that ends at the last step depends on how many steps there are.
  static std::vector<std::string> run_lines(const RunConfig& run) {
    auto lines = canonical_lines(run);
    if (run.optimizer.lr_scheduler != RunConfig::LrScheduler::kConstant)
      lines.push_back(fmt::format("train.max_train_steps={}", run.train.max_train_steps));
    return lines;
  }

  // Weights of the model, or the state of a checkpoint. Configuration and seed stay this run's: they may differ where a
  // change was allowed.
  void load() {
    check_allowed_changes(options_.allowed_changes);
    if (const auto from = find_resume_point(run_, state_, checkpoints_, options_.allowed_changes, pool_)) {
      load_state(store_, from->directory, pool_, true);
      state_.step = from->state.step;
      state_.updates = from->state.updates;
      state_.position = from->state.position < 0 ? data_->position(state_.step) : from->state.position;
      data_->resume_after(state_.step, state_.position);
      run_.train.max_train_steps = data_->last_step();
      log_info("resumed from {} at step {}", from->directory.path(), state_.step);
    } else {
      load_state(store_, weights_, pool_, false);
      state_.position = 0;
    }
    require_finite_weights(store_, state_.step ? run_.output.output_dir : run_.model.path, pool_);
  }

  // Of the checkpoints: they name the model that their codec, text encoder and other network come from.
  void fill_manifest() {
    manifest_ = weights_.manifest();
    manifest_.config = config_;
    ModelSource& source = manifest_.source;
    source.parts = model_.directory().manifest().source.parts;
    if (source.parts.empty()) source.parts = std::filesystem::absolute(run_.model.path).lexically_normal().string();
    if (run_.model.expert) source.network = run_.model.expert == RunConfig::Expert::kLow ? "transformer_2" : "transformer";
  }

  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool validation_due(int64_t last) const {
    return data_->validation_batches() > 0 && (due(run_.train.validate_every_n_steps) || state_.step == last);
  }

  // Everything is issued, then the next step's data is prepared while it runs.
  StepMetrics issue_and_wait(const std::vector<HostBatch>& batches, int64_t last, std::vector<HostBatch>& next) {
    StepMetrics m;
    m.step = state_.step + 1;
    m.lr = learning_rate_at(run_, m.step);
    std::vector<MicroBatch> views;
    views.reserve(batches.size());
    for (const auto& b : batches) views.push_back(b.view());
    step_->begin(views, m.lr);
    std::exception_ptr no_data;
    try {
      if (m.step < last) next = batches_of(*data_, m.step + 1);
    } catch (...) {
      no_data = std::current_exception();  // the step in hand still reads `batches`
    }
    const double prepared = device_->now();
    const StepResult r = step_->finish();
    if (no_data) std::rethrow_exception(no_data);
    m.wait_data = std::max(0.0, prepared - r.ended);
    state_.step = m.step;
    state_.position = data_->position(m.step);
    state_.updates = step_->updates();
    m.loss = r.loss;
    m.grad_norm = r.grad_norm;
    m.clipped = r.clipped;
    m.skipped = r.skipped;
    count_skipped(r);
    return m;
  }

  void count_skipped(const StepResult& r) {
    skipped_in_a_row_ = r.skipped ? skipped_in_a_row_ + 1 : 0;
    if (!r.skipped) return;
    ++summary_.skipped;
    log_warning("step {}: loss {} or gradient norm {} is not finite: the update was skipped", state_.step, r.loss, r.grad_norm);
    if (run_.train.stop_after_skipped > 0 && skipped_in_a_row_ >= run_.train.stop_after_skipped)
      throw Error(fmt::format("{} steps in a row were not finite, the last is step {}", skipped_in_a_row_, state_.step),
                  "lower optimizer.learning_rate and resume from the last checkpoint");
  }

  void finish_metrics(StepMetrics& m, const std::vector<HostBatch>& batches) {
    const StreamTimes t = device_->take_times();
    double flops = 0;
    for (const auto& b : batches) {
      m.tokens += b.tokens;
      flops += training_flops(config_, b.shape);
    }
    m.tokens_per_second = static_cast<double>(m.tokens) / m.seconds;
    if (options_.peak_flops > 0) {
      m.mfu = flops / (m.seconds * options_.peak_flops);
      m.hfu = t.flops / (m.seconds * options_.peak_flops);
    }
    m.wait_upload = t.wait_upload();
    m.wait_download = t.wait_download();
    m.wait_optimizer = t.wait_optimizer();
    m.wait_disk = t.wait_disk();
    const ResidentMemory memory = resident_memory();
    m.host_rss_bytes = memory.now;
    m.host_peak_bytes = memory.peak;
    m.device_peak_bytes = device_->memory().peak;
    if (!m.skipped) losses_.push_back(m.loss);
    seconds_.push_back(m.seconds);
    tokens_ += m.tokens;
  }

  // Nothing where the run is asked to stop meanwhile.
  std::optional<double> validate() {
    step_->drain();
    const int64_t n = data_->validation_batches();
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (options_.stop.requested()) return std::nullopt;
      const HostBatch b = data_->validation_batch(i);
      double loss = 0;
      device_->synchronize(step_->pipeline().evaluate(b.view(), &loss));
      sum += loss;
    }
    return sum / static_cast<double>(n);
  }

  bool goes_on() const { return state_.step < run_.train.max_train_steps && !options_.stop.requested(); }

  // on_checkpoint_error: continue is for checkpoints on the way; the last one is what the run was for.
  void checkpoint() {
    step_->drain();
    std::exception_ptr failure;
    const auto attempt = [&](const char* what, auto&& work) {
      try {
        work();
      } catch (const std::exception& e) {
        if (run_.output.on_checkpoint_error == RunConfig::OnCheckpointError::kContinue && goes_on())
          return log_warning("the {} of step {} failed, training goes on: {}", what, state_.step, e.what());
        if (failure) log_warning("{}", e.what());
        else failure = std::current_exception();
      }
    };
    // A checkpoint's steps are on disk before it is; where they cannot be, the state is worth more than they are.
    attempt("metrics", [&] { metrics_->flush(); });
    attempt("checkpoint", [&] {
      summary_.checkpoint = checkpoints_.save(store_, manifest_, state_, run_.output.checkpoints_total_limit, pool_);
      saved_step_ = state_.step;
    });
    if (failure) std::rethrow_exception(failure);
    draw_losses();
  }

  void draw_losses() const {
    try {
      metrics_->draw();
    } catch (const Error& e) {
      log_warning("the loss curve could not be drawn: {}", e.what());
    }
  }

  // A stop ends the sampling, and the run is closed as after any step. Samples that fail do not end a training.
  void sample() {
    step_->drain();
    try {
      sample_in_training({run_, parts_, texts_, network_, *device_, step_->pipeline(), options_.threads}, state_.step, options_.stop);
    } catch (const Stopped&) {
    } catch (const std::exception& e) {
      if (!goes_on()) throw;
      log_warning("the samples of step {} failed, training goes on: {}", state_.step, e.what());
    }
  }

  void close() {
    step_->drain();
    device_->synchronize();
    summary_.stopped = options_.stop.requested() && state_.step < run_.train.max_train_steps;
    // A signal may arrive just after the last look at the token.
    if (summary_.stopped && saved_step_ != state_.step && state_.step > summary_.resumed_from) checkpoint();
    draw_losses();
    if (!options_.trace_path.empty()) write_file_atomic(options_.trace_path, trace_json(device_->take_trace(), trace_steps_, device_->phases(), "finetune"));
    summary_.last_step = state_.step;
    summary_.first_loss = mean_of_end(losses_, true);
    summary_.last_loss = mean_of_end(losses_, false);
    const double total = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
    summary_.tokens_per_second = total > 0 ? static_cast<double>(tokens_) / total : 0;
    if (!seconds_.empty()) {
      std::nth_element(seconds_.begin(), seconds_.begin() + static_cast<std::ptrdiff_t>(seconds_.size() / 2), seconds_.end());
      summary_.step_seconds = seconds_[seconds_.size() / 2];
    }
    summary_.device_peak_bytes = device_->memory().peak;
    summary_.host_peak_bytes = resident_memory().peak;
    summary_.state_hash = state_hash(store_, state_, pool_);
  }

  RunConfig run_;
  const TrainerOptions options_;
  DiskWatch disk_watch_;
  OutputLock lock_;
  OpenModel model_;
  ModelDirectory weights_;
  ModelConfig config_;
  ModelParts parts_;
  SampleTexts texts_;
  CheckpointFolder checkpoints_;
  Network network_;
  std::unique_ptr<TrainingData> data_;
  HostStore store_;
  std::unique_ptr<Device> device_;
  ThreadPool pool_;
  ModelManifest manifest_;
  RunState state_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<MetricsWriter> metrics_;
  TrainSummary summary_;
  std::vector<double> losses_, seconds_;
  std::vector<TraceStep> trace_steps_;
  int64_t tokens_ = 0, skipped_in_a_row_ = 0, saved_step_ = -1;
};

}  // namespace

TrainSummary run_training(const RunConfig& run, const TrainerOptions& options, const std::function<void(const StepMetrics&)>& on_step) {
  Trainer trainer(run, options);
  return trainer.run(on_step);
}

}  // namespace megaslide
