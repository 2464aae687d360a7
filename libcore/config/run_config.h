// A training run: what run.yaml holds, with defaults. Every key is described in megaslide-config(5); a key here, in
// run_schema.cc and in the man page are compared by a test.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "config/objective.h"

namespace megaslide {

// A byte budget or size of 0 means: none set. An empty optional means: the model's own value.
struct RunConfig {
  enum class ComputeDtype { kBf16, kFp32 };
  enum class Clip { kExact, kLayer, kNone };
  enum class LrScheduler { kConstant, kCosine, kLinear };
  enum class OptimizerDevice { kCpu, kDevice };
  enum class Masters { kSplit, kFp32, kBf16StochasticRounding };
  enum class Moments { kFp32, kBf16, kInt8 };
  enum class Gradients { kBf16, kFp32 };
  enum class Tier { kRam, kNvme };
  enum class Stash { kDevice, kHost, kRecompute };
  enum class Link { kShared, kEmulated };
  enum class OnCheckpointError { kStop, kContinue };
  enum class Expert { kHigh, kLow };           // of a model of two networks: the first, the second
  enum class FirstFrame { kNoised, kClean };   // clean: given, not learnt (image to video)

  struct Dsa {  // overrides of the model's
    std::optional<std::array<int64_t, 3>> kernel;
    std::optional<std::array<double, 3>> reach;
    std::optional<DsaMode> mode;
    std::optional<int64_t> groups;
    std::optional<DsaOffsets> offsets;
    std::optional<double> motion_share;
    std::optional<bool> pooled;
  };
  struct Model {
    std::string path;  // a MODEL argument
    std::optional<Expert> expert;
    std::optional<AttentionKind> attention;
    ComputeDtype compute_dtype = ComputeDtype::kBf16;
    bool fp8_forward = false;  // products of the blocks' forward passes in E4M3
    Dsa dsa;
  } model;

  struct Data {
    std::vector<std::string> cache;  // made by encode-clips
    std::string replay;              // or stored batches, a .safetensors file
    std::string displacement;        // folder that says where the clips' tokens go
    std::vector<int64_t> num_repeats{1};  // for all caches, or one number a cache
    double caption_dropout_rate = 0.1;
    double validation_fraction = 0;
    int64_t batch_size = 1;    // samples a microbatch
    int64_t batch_tokens = 0;  // or as many samples as stay within this; 0: batch_size counts
    int64_t repeats_of(size_t number) const { return num_repeats.size() == 1 ? num_repeats[0] : num_repeats[number]; }
  } data;

  struct Train {
    int64_t max_train_steps = 1000;
    int64_t max_train_epochs = 0;  // instead of steps; 0: max_train_steps counts
    int64_t gradient_accumulation_steps = 1;
    double max_grad_norm = 1;  // 0: no clipping
    Clip clip = Clip::kExact;
    TimestepSampling timestep_sampling = TimestepSampling::kLogitNormal;
    double logit_mean = 0, logit_std = 1, sigmoid_scale = 1, mode_scale = 1.29;
    std::optional<double> flow_shift;
    double min_timestep = 0, max_timestep = 1000;  // none outside is drawn
    int64_t num_timestep_buckets = 0;              // quantiles that each epoch covers evenly; 0: independent draws
    LossWeighting weighting_scheme = LossWeighting::kNone;
    LossType loss_type = LossType::kMse;
    double huber_delta = 1;
    FirstFrame first_frame = FirstFrame::kNoised;
    int64_t seed = 0;
    double stall_timeout = 120;       // seconds; 0: never
    int64_t stop_after_skipped = 20;  // non-finite steps in a row; 0: never
    int64_t validate_every_n_steps = 100;
  } train;

  struct Optimizer {
    double learning_rate = 1e-4;
    std::array<double, 2> betas{0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0.01;
    LrScheduler lr_scheduler = LrScheduler::kConstant;
    int64_t lr_warmup_steps = 0;
    OptimizerDevice device = OptimizerDevice::kCpu;
    Masters masters = Masters::kSplit;
    Moments moments = Moments::kFp32;
    Gradients gradients = Gradients::kBf16;
  } optimizer;

  struct Stream {
    bool async = true;
    int64_t slots = 2;
    int64_t device_budget = 0, host_budget = 0;  // bytes
    Tier tier = Tier::kRam;
    std::string tier_path;        // folder of the tier on disk; empty: output.output_dir
    Stash stash = Stash::kDevice;
    int64_t segment = 1;          // layers between two kept inputs
    int64_t slabs = kSlabsAuto;   // or kSlabsOff, or frames a slab
    Link link = Link::kShared;
    double link_bandwidth = 0;    // bytes/s each way; 0: as fast as memory
  } stream;
  static constexpr int64_t kSlabsAuto = -1, kSlabsOff = 0;

  struct Sample {
    std::vector<std::string> prompts;  // none: no samples
    int64_t every_n_steps = 0;         // 0: at the end only
    std::optional<int64_t> num_frames;
    int64_t width = 0, height = 0;
    std::optional<int64_t> steps;
    std::optional<double> guidance_scale, flow_shift;
    std::string negative_prompt;
    int64_t seed = 0;
  } sample;

  struct Output {
    std::string output_dir;
    int64_t save_every_n_steps = 0;  // 0: at the end only
    int64_t checkpoints_total_limit = 2;
    std::string resume_from_checkpoint = "latest";  // or "none", or a path
    OnCheckpointError on_checkpoint_error = OnCheckpointError::kStop;
  } output;

  int64_t threads = 0;  // 0: all this process may use
};

// The model with the run's overrides of attention and dsa. Validated; throws a usage Error.
ModelConfig with_overrides(const ModelConfig& model, const RunConfig& run);

// Throws a usage Error for settings that this version cannot run, naming what it can.
void reject_unsupported(const RunConfig& run);

// Throws a usage Error that lists what training needs and the configuration lacks.
void require_for_training(const RunConfig& run);

// "key=value" for every key that changes what the run computes, sorted. Where results are kept, how long the run is,
// and how the work is laid out on the machine (budgets, link, async, slots, threads) are left out: none of it changes a
// step's result. (A schedule that falls towards the last step does depend on the length: the trainer adds it then.)
std::vector<std::string> canonical_lines(const RunConfig& run);

// SHA-256 of canonical_lines, in hexadecimal.
std::string config_digest(const RunConfig& run);

// One line a key that differs between two results of canonical_lines: "train.seed: was 7, is 8".
std::vector<std::string> differing_keys(const std::vector<std::string>& before, const std::vector<std::string>& now);

// Paths of all keys of run.yaml, in the order of the man page.
std::vector<std::string> run_config_keys();

}  // namespace megaslide
