// From a configuration to what runs: one place, so that a plan and a run cannot differ.
#pragma once
#include "config/machine_config.h"
#include "config/model_config.h"
#include "config/run_config.h"
#include "train/step.h"

namespace megaslide {

DType compute_dtype(const RunConfig& run);
HostStoreOptions host_store_options(const RunConfig& run, bool simulated);
OptimizerOptions optimizer_options(const RunConfig& run);
// `shapes`: those of the data. `sampling`: those of sampling_shapes().
PipelineOptions pipeline_options(const RunConfig& run, const ModelConfig& model, std::vector<BatchShape> shapes, std::vector<BatchShape> sampling, int max_microbatches);
CpuDeviceOptions cpu_device_options(const RunConfig& run, int threads, bool trace);
SimDeviceOptions sim_device_options(const RunConfig& run, const MachineConfig& machine, bool trace);

// Host memory of the inputs of `microbatches` microbatches of the largest shape, twice: one set in use, one prepared.
int64_t staging_bytes(const ModelConfig& model, const std::vector<BatchShape>& shapes, int microbatches);

}  // namespace megaslide
