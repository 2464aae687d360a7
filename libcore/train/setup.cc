#include "train/setup.h"

#include <algorithm>
#include <cmath>

#include "train/objective.h"

namespace megaslide {

DType compute_dtype(const RunConfig& run) {
  return run.model.compute_dtype == RunConfig::ComputeDtype::kFp32 ? DType::kF32 : DType::kBF16;
}

namespace {

ClipMode clip_mode(const RunConfig& run) {
  switch (run.train.clip) {
    case RunConfig::Clip::kExact: return ClipMode::kExact;
    case RunConfig::Clip::kLayer: return ClipMode::kLayer;
    case RunConfig::Clip::kNone: return ClipMode::kNone;
  }
  return ClipMode::kExact;
}

MasterCodec master_codec(const RunConfig& run) {
  switch (run.optimizer.masters) {
    case RunConfig::Masters::kSplit: return MasterCodec::kSplit;
    case RunConfig::Masters::kFp32: return MasterCodec::kFp32;
    case RunConfig::Masters::kBf16StochasticRounding: return MasterCodec::kBf16Sr;
  }
  return MasterCodec::kSplit;
}

MomentCodec moment_codec(const RunConfig& run) {
  switch (run.optimizer.moments) {
    case RunConfig::Moments::kFp32: return MomentCodec::kFp32;
    case RunConfig::Moments::kBf16: return MomentCodec::kBf16;
    case RunConfig::Moments::kInt8: return MomentCodec::kInt8;
  }
  return MomentCodec::kFp32;
}

// The device's memory for inputs of L layers is least, about 2√L of them, with segments of √L.
StashOptions stash_options(const RunConfig& run, int64_t layers) {
  const auto& s = run.stream;
  StashOptions o{s.stash == RunConfig::Stash::kHost ? StashPlace::kHost : StashPlace::kDevice, static_cast<int>(s.segment)};
  if (s.stash == RunConfig::Stash::kRecompute && s.segment == 1) o.segment = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(layers))));
  return o;
}

}  // namespace

HostStoreOptions host_store_options(const RunConfig& run, bool simulated) {
  HostStoreOptions o;
  o.compute_dtype = compute_dtype(run);
  o.training = true;
  o.masters = master_codec(run);
  o.moments = moment_codec(run);
  o.gradients = run.optimizer.gradients == RunConfig::Gradients::kFp32 ? DType::kF32 : DType::kBF16;
  o.simulated = simulated;
  o.gradient_slots = gradient_slots(clip_mode(run));
  o.on_disk = run.stream.tier == RunConfig::Tier::kNvme;
  o.tier_path = run.stream.tier_path.empty() ? run.output.output_dir : run.stream.tier_path;
  o.slots = static_cast<int>(run.stream.slots);
  return o;
}

OptimizerOptions optimizer_options(const RunConfig& run) {
  return {run.optimizer.betas[0], run.optimizer.betas[1], run.optimizer.eps, run.optimizer.weight_decay,
          run.train.max_grad_norm, clip_mode(run), static_cast<uint64_t>(run.train.seed),
          run.optimizer.device == RunConfig::OptimizerDevice::kDevice};
}

PipelineOptions pipeline_options(const RunConfig& run, const ModelConfig& model, std::vector<BatchShape> shapes, std::vector<BatchShape> sampling,
                                 int max_microbatches) {
  PipelineOptions o;
  o.compute_dtype = compute_dtype(run);
  o.training = true;
  o.slots = static_cast<int>(run.stream.slots);
  o.shapes = std::move(shapes);
  o.predict_shapes = std::move(sampling);
  o.max_microbatches = max_microbatches;
  o.stash = stash_options(run, model.layers);
  o.slab_frames = std::max<int64_t>(0, run.stream.slabs);
  o.loss = loss_term(run);
  return o;
}

CpuDeviceOptions cpu_device_options(const RunConfig& run, int threads, bool trace) {
  CpuDeviceOptions o;
  o.threads = threads;
  o.async = run.stream.async;
  o.link = run.stream.link == RunConfig::Link::kEmulated ? LinkKind::kEmulated : LinkKind::kShared;
  o.bandwidth = run.stream.link_bandwidth;
  o.budget = run.stream.device_budget;
  o.trace = trace;
  o.stall_timeout = run.train.stall_timeout;
  return o;
}

SimDeviceOptions sim_device_options(const RunConfig& run, const MachineConfig& machine, bool trace) {
  SimDeviceOptions o;
  o.target = machine.device == "cuda" ? Backend::kCuda : Backend::kCpu;
  o.rates.gemm = compute_dtype(run) == DType::kF32 ? machine.gemm_fp32 : machine.gemm_bf16;
  o.rates.attention = machine.attention;
  o.rates.memory_bytes = machine.unified ? machine.host_bandwidth : machine.vector_bandwidth;
  o.rates.vector_bytes = machine.vector_bandwidth;
  o.rates.pack_bytes = machine.pack_bandwidth;
  o.rates.optimizer_bytes = machine.optimizer_bandwidth;
  o.rates.host_bytes = machine.host_bandwidth;
  o.rates.disk_read = machine.disk_read_bandwidth ? machine.disk_read_bandwidth : machine.disk_bandwidth;
  o.rates.disk_write = machine.disk_bandwidth;
  o.rates.link_up = machine.link_up;
  o.rates.link_down = machine.link_down;
  o.rates.link_derating = machine.link_derating;
  o.rates.launch_latency = machine.launch_latency;
  o.rates.unified = machine.unified;
  o.async = run.stream.async;
  // A machine with a device of its own always has a link; on the host's processor the run decides.
  o.link = !machine.unified || run.stream.link == RunConfig::Link::kEmulated ? LinkKind::kEmulated : LinkKind::kShared;
  o.bandwidth = machine.unified ? run.stream.link_bandwidth : 0;
  o.trace = trace;
  return o;
}

int64_t staging_bytes(const ModelConfig& model, const std::vector<BatchShape>& shapes, int microbatches) {
  int64_t largest = 0;
  for (const auto& s : shapes) {
    const int64_t latent = s.batch * s.tokens() * 4 * (model.in_channels + model.out_channels);
    largest = std::max(largest, 4 * (latent + s.batch * (s.times + 3 * s.frames + s.context_rows * model.text_dim)));
  }
  return 2 * microbatches * largest;
}

}  // namespace megaslide
