#include "plan/planner.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/cache.h"
#include "diffusion/video_sampler.h"
#include "io/open_model.h"
#include "kernels/tile/unit.h"
#include "model/wan.h"
#include "plan/simulate.h"
#include "train/checkpoint.h"
#include "train/flops.h"
#include "train/metrics.h"
#include "train/sample_in_training.h"
#include "train/setup.h"
#include "train/training_data.h"

namespace megaslide {
namespace {

// What a run adds to the program as it stands at its start: stacks, scratch and allocator slack, and the code that oneDNN
// generates where it multiplies. Both as measured on runs of the tiny preset.
constexpr int64_t kRuntimeBytes = int64_t{5} << 20, kGeneratedCodeBytes = int64_t{8} << 20;
// Attention to moved windows: places, weights and gathered keys of a tile, in each thread.
constexpr int64_t kWindowScratchBytes = int64_t{2} << 20;

bool has_windows(const ModelConfig& c) {
  for (int64_t l = 0; l < c.layers; ++l)
    if (c.attention.of_layer(l) == AttentionKind::kDsa) return true;
  return false;
}

int64_t runtime_bytes(const PlanRequest& r) {
  const bool tiles = r.run.model.compute_dtype == RunConfig::ComputeDtype::kBf16 && tile_unit() != TileUnit::kNone;
  return kRuntimeBytes + (tiles ? 0 : kGeneratedCodeBytes) + (has_windows(r.model) ? kWindowScratchBytes : 0);
}

// Inputs that a sim device never reads.
MicroBatch unread_batch(const BatchShape& shape) {
  const auto* p = reinterpret_cast<const float*>(uintptr_t{1} << 47);  // NOLINT(performance-no-int-to-ptr): no address of any memory
  MicroBatch b{shape, p, p, p, p};
  b.displacement = p;
  return b;
}

int64_t category(const MemoryReport& m, MemoryCategory c) { return m.peak_by_category[static_cast<size_t>(c)]; }

std::string bound_by(const StreamTimes& t, const PlanWaits& w, double seconds, bool async) {
  if (!async) return "compute";
  const double waited = w.upload + w.download + w.optimizer + w.disk;
  if (waited < 0.1 * seconds || t.busy[0] > waited) return "compute";
  if (w.disk >= std::max({w.optimizer, w.upload, w.download})) return "disk";
  if (w.optimizer >= w.upload && w.optimizer >= w.download) return "optimizer";
  return w.upload >= w.download ? "upload" : "download";
}

std::string misfit(const char* what, int64_t needed, int64_t allowed) {
  return fmt::format("{}: {} ({} bytes) needed, {} ({} bytes) allowed", what, format_bytes(needed), needed, format_bytes(allowed), allowed);
}

void fill_limits(Plan& p, const PlanRequest& r) {
  p.device_limit = r.run.stream.device_budget ? r.run.stream.device_budget : r.machine.device_memory;
  p.host_limit = r.run.stream.host_budget ? r.run.stream.host_budget : r.machine.host_memory;
  if (p.device_limit && p.device.peak > p.device_limit)
    p.misfits.push_back(misfit("device memory", p.device.peak, p.device_limit));
  if (p.host_limit && p.host.total() > p.host_limit)
    p.misfits.push_back(misfit("host memory", p.host.total(), p.host_limit));
  // The limit and one in progress; a short run writes fewer.
  const int64_t saves = r.run.output.save_every_n_steps ? (r.run.train.max_train_steps - 1) / r.run.output.save_every_n_steps + 1 : 1;
  const int64_t checkpoints = p.disk.checkpoint * std::min(saves, std::max<int64_t>(2, r.run.output.checkpoints_total_limit) + 1);
  if (r.machine.disk_bytes && checkpoints + p.disk.tier > r.machine.disk_bytes)
    p.misfits.push_back(misfit(p.disk.tier ? "disk, for the layers' state and checkpoints" : "disk, for checkpoints", checkpoints + p.disk.tier, r.machine.disk_bytes));
}

}  // namespace

// Samples are no part of a step.
BatchShape longest(const PlanRequest& r) {
  return *std::max_element(r.shapes.begin(), r.shapes.end(), [&](const BatchShape& a, const BatchShape& b) {
    return forward_flops(r.model, a) < forward_flops(r.model, b);
  });
}

bool surely_fits(const Plan& p) { return p.fits() && (!p.host_limit || p.host.total() + kStartSlack <= p.host_limit); }

// Two simulated steps bring the pipeline to its steady state; the third is measured.
Plan simulate(const PlanRequest& r, StopToken stop) {
  const Network network = make_wan_network(r.model, r.run.model.fp8_forward);
  HostStore store(network, host_store_options(r.run, true));
  const auto device = make_sim_device(sim_device_options(r.run, r.machine, r.trace));
  TrainStep step(*device, network, store, pipeline_options(r.run, r.model, r.shapes, r.sampling, r.max_microbatches), optimizer_options(r.run), 0);
  const BatchShape shape = longest(r);
  const std::vector<MicroBatch> batches(static_cast<size_t>(r.max_microbatches), unread_batch(shape));
  constexpr int kSteps = 3;
  double begin = 0;
  for (int i = 0; i < kSteps; ++i) {
    stop.throw_if_requested();
    begin = device->now();
    device->take_times();
    device->take_trace();
    step.begin(batches, 0);
    step.finish();
  }
  Plan p;
  p.step_seconds = device->now() - begin;
  const StreamTimes t = device->take_times();
  p.waits = {t.wait_upload(), t.wait_download(), t.wait_optimizer(), t.wait_disk(), 0};
  p.bound_by = bound_by(t, p.waits, p.step_seconds, r.run.stream.async);
  if (r.trace) {
    p.trace = device->take_trace();
    p.trace_step = {kSteps, begin, device->now(), p.waits.upload, p.waits.download, p.waits.optimizer, p.waits.disk, 0};
    p.phases = device->phases();
  }
  p.parameters = parameter_count(r.model);
  p.tokens = shape.rows() * r.max_microbatches;
  if (r.machine.peak_flops > 0 && p.step_seconds > 0) {
    p.mfu = training_flops(r.model, shape) * r.max_microbatches / (p.step_seconds * r.machine.peak_flops);
    p.hfu = t.flops / (p.step_seconds * r.machine.peak_flops);
  }
  const MemoryReport& m = device->memory();
  p.device = {category(m, MemoryCategory::kWeights), category(m, MemoryCategory::kActivations), category(m, MemoryCategory::kGradients),
              category(m, MemoryCategory::kWorkspace), category(m, MemoryCategory::kOther), m.peak};
  p.device_allocations = m.at_peak;
  const HostLedger& ledger = store.ledger();
  p.host.weights = ledger.weights;
  p.host.masters = ledger.masters;
  p.host.moments = ledger.moments;
  p.host.gradients = ledger.gradients;
  p.host.activations = step.pipeline().host_stash_bytes();
  p.host.pinned = staging_bytes(r.model, r.shapes, r.max_microbatches);
  p.host.other = runtime_bytes(r) + r.program_bytes + r.dataset_bytes;
  p.host.device_arena = r.machine.unified ? p.device.peak : 0;
  p.disk.checkpoint = checkpoint_bytes(store);
  p.disk.tier = ledger.disk;
  fill_limits(p, r);
  return p;
}

Plan make_plan(const PlanRequest& request, StopToken stop) {
  Plan plan = simulate(request, stop);
  if (plan.fits()) return plan;
  plan.remedies = find_remedies(request, plan, stop);
  return plan;
}

BatchShape latent_grid(const ModelConfig& model, int64_t num_frames, int64_t width, int64_t height, int64_t batch) {
  VideoSamplerOptions o;
  o.num_frames = num_frames;
  o.width = width;
  o.height = height;
  if (const auto errors = sampling_option_errors(model, o); !errors.empty()) throw usage_error(fmt::format("{}", fmt::join(errors, "\n  ")));
  return batch_shape_of(latent_shape(model, num_frames, height, width), batch, model.text_len, model.name);
}

PlanRequest plan_request(const RunConfig& run, const MachineConfig& machine, const ClipSize& clips) {
  PlanRequest r;
  r.run = run;
  r.machine = machine;
  r.model = with_overrides(model_config_of(run.model.path), run);
  if (clips.num_frames || clips.width || (run.data.cache.empty() && run.data.replay.empty())) {
    const auto or_default = [](int64_t given, int64_t otherwise) { return given ? given : otherwise; };
    r.shapes = {latent_grid(r.model, or_default(clips.num_frames, r.model.num_frames), or_default(clips.width, r.model.width),
                            or_default(clips.height, r.model.height), run.data.batch_size)};
    r.max_microbatches = static_cast<int>(run.train.gradient_accumulation_steps);
  } else {
    for (const std::string& cache : run.data.cache) require_latent_cache(cache, "make one with encode-clips, or plan without clips: --num-frames N --size WxH");
    const auto data = open_training_data(run, r.model, open_parts(run.model.path));
    r.shapes = data->shapes();
    r.dataset_bytes = data->host_bytes();
    r.max_microbatches = data->max_microbatches();
    r.run.train.max_train_steps = data->last_step();
  }
  r.sampling = sampling_shapes(run, r.model, make_wan_network(r.model));
  // Before any plan: planning itself makes the program grow.
  r.program_bytes = resident_memory().now;
  return r;
}

}  // namespace megaslide
