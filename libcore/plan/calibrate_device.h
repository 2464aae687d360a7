// Rates of a device, from its own clock: of kernels, and of the link where its memory is its own.
#pragma once
#include <functional>

#include "config/model_config.h"
#include "device/device.h"
#include "model/layer.h"
#include "tensor/tensor.h"

namespace megaslide {

// n values between -1 and 1: a device computes zeros faster, since they cost it less power.
HostTensor calibration_noise(DType dtype, int64_t n);

// All of these take a device that traces, at rest.

// What kernels reach inside a block of the model in the mix of a training step: forward, recompute and backward, packed as
// for each, for `at_least` seconds or more.
struct BlockRates {
  double gemm = 0, attention = 0;               // flop/s, in bf16
  double vector_bytes = 0, pack_bytes = 0;      // bytes/s
};
BlockRates measure_block(Device& device, const ModelConfig& model, const BatchShape& shape, double at_least);

// flop/s of square products at their best: a peak.
double measure_square_products(Device& device, int64_t side, DType dtype);
// Of growing ones, up to `most` or until one takes 2 ms.
double measure_square_products_up_to(Device& device, int64_t most, DType dtype);

struct LinkRates {
  double up = 0, down = 0, both = 0;  // bytes/s: each way alone, both ways at once together
  double derating = 1;                // of an upload while host_load runs
};
// By copies of up to 256 MiB, or so long that one takes 2 ms. host_load streams the host's memory for a tenth of a second or so.
LinkRates measure_link(Device& device, const std::function<void()>& host_load);

// Seconds a kernel, of many in a row that do nothing.
double measure_launches(Device& device);

}  // namespace megaslide
