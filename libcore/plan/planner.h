// The ledger: every byte and every second of a run before it starts, by running the real schedule on the sim device.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/stop.h"
#include "config/machine_config.h"
#include "config/model_config.h"
#include "config/run_config.h"
#include "device/trace.h"
#include "model/layer.h"

namespace megaslide {

struct PlanRequest {
  ModelConfig model;                // with the run's overrides
  MachineConfig machine;
  RunConfig run;
  std::vector<BatchShape> shapes;   // every shape that is trained or validated
  std::vector<BatchShape> sampling = {};  // further ones of samples taken while training
  int max_microbatches = 1;
  int64_t dataset_bytes = 0;        // kept in host memory
  int64_t program_bytes = 0;        // resident when the program started
  bool trace = false;
};

struct PlanWaits {
  double upload = 0, download = 0, optimizer = 0, disk = 0, data = 0;
};

struct Plan {
  int64_t parameters = 0;
  int64_t tokens = 0;  // a step
  struct Host {
    int64_t weights = 0, masters = 0, moments = 0, gradients = 0, activations = 0, pinned = 0, other = 0;
    int64_t device_arena = 0;  // where the device is the host's processor, its memory is the host's too
    int64_t total() const { return weights + masters + moments + gradients + activations + pinned + other + device_arena; }
  } host;
  struct DeviceMemory {
    int64_t weights = 0, activations = 0, gradients = 0, workspace = 0, other = 0, peak = 0;
  } device;
  std::vector<DeviceAllocation> device_allocations;  // at the peak
  struct Disk {
    int64_t checkpoint = 0, tier = 0;  // a checkpoint, of which limit + 1 may exist at once; layers' state (stream.tier: nvme)
  } disk;
  double step_seconds = 0, mfu = 0, hfu = 0;
  std::string bound_by;  // compute, upload, download, optimizer, dram, disk
  PlanWaits waits;
  int64_t device_limit = 0, host_limit = 0;  // bytes; 0: none known
  std::vector<std::string> misfits;          // one line a limit that is passed
  std::vector<std::string> remedies;         // what makes it fit: settings, cheapest in step time first, then smaller clips
  bool fits() const { return misfits.empty(); }
  std::vector<TraceSpan> trace;  // of one step
  TraceStep trace_step;
  std::vector<std::string> phases;
};

// Plans, and looks for remedies where the run does not fit: each is a change that was itself planned and fits.
Plan make_plan(const PlanRequest& request, StopToken stop = {});

// Clips as the command line describes them; 0: the model's default.
struct ClipSize {
  int64_t num_frames = 0, width = 0, height = 0;
};

// The request of a run: its shapes are those of its cache or replay file, as finetune would start it, or of `clips` where
// that says anything, or where the run names no data.
PlanRequest plan_request(const RunConfig& run, const MachineConfig& machine, const ClipSize& clips = {});

// The token grid of a clip. Throws a usage Error for sizes that the model cannot take, naming the nearest that it can.
BatchShape latent_grid(const ModelConfig& model, int64_t num_frames, int64_t width, int64_t height, int64_t batch);

std::string to_json(const Plan& plan);                          // the fields of cli.md, one line
std::string to_text(const Plan& plan, const PlanRequest& request);  // for people
// "does not fit: …" with all misfits and remedies, for a run that refuses to start.
std::string misfit_text(const Plan& plan);

}  // namespace megaslide
