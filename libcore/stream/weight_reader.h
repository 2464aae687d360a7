// Weights from a model directory just in time: what lets a model run that is larger than memory.
#pragma once
#include "device/device.h"
#include "io/model_directory.h"
#include "stream/host_store.h"
#include "stream/pipeline.h"

namespace megaslide {

// Serves a streamed HostStore. Reading runs on the device's host stream: while layer l is computed, layer l + 1 comes
// from the disk.
class WeightReader {
 public:
  // All must outlive the pipeline that uses hooks().
  WeightReader(Device& device, HostStore& store, const ModelDirectory& model) : device_(device), store_(store), model_(model) {}
  // For the Pipeline, whose slots must be as many as the store's streamed_slots.
  PipelineHooks hooks();

 private:
  Event read(int module, const Event& released);

  Device& device_;
  HostStore& store_;
  const ModelDirectory& model_;
};

// One module's weights into its slab, in pieces over the pool. The bits are those of load_state.
void read_weights(ModuleState& s, DType compute_dtype, const SafetensorsFile& file, ThreadPool& pool);

}  // namespace megaslide
