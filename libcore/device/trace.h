// Traces for chrome://tracing and ui.perfetto.dev, from runs and from plans alike: the same tracks under the same names.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace megaslide {

// A training step on the device's clock, and the seconds of it in which the device waited.
struct TraceStep {
  int64_t number = 0;
  double begin = 0, end = 0;
  double wait_upload = 0, wait_download = 0, wait_optimizer = 0, wait_disk = 0, wait_data = 0;
};

// One track of steps and one a stream; every event is a complete one ("X"), in microseconds.
std::string trace_json(std::span<const TraceSpan> spans, std::span<const TraceStep> steps, const std::vector<std::string>& phases,
                       const std::string& process);

}  // namespace megaslide
