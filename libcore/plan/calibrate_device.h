// Rates of a device with memory of its own, from its own clock.
#pragma once
#include <functional>

#include "device/device.h"
#include "plan/calibrate.h"

namespace megaslide {

struct DeviceRates {
  double gemm_bf16 = 0, gemm_fp32 = 0, attention = 0;  // flop/s in a block of the model
  double peak_flops = 0;                               // of square products in bf16
  double vector_bytes = 0, pack_bytes = 0;             // bytes/s
  double link_up = 0, link_down = 0, link_both = 0;    // bytes/s: each way alone, both ways at once together
  double link_derating = 1;                            // of an upload while host_load runs
  double launch_latency = 0;                           // seconds a kernel, many in a row
};

struct DeviceMeasurement {
  ModelConfig model;
  BatchShape shape;
  int64_t square = 8192;                      // side of the square products
  int64_t link_bytes = int64_t{256} << 20;    // of a copy
  std::function<void()> host_load;            // streams the host's memory for a tenth of a second or so
};

// `device` traces. Throws Error where its memory does not hold a block of the model at this size.
DeviceRates measure_device(Device& device, const DeviceMeasurement& what);

}  // namespace megaslide
