// Model directories with random initial weights.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/stop.h"
#include "base/thread_pool.h"
#include "config/model_config.h"
#include "model/layer.h"
#include "tensor/dtype.h"

namespace megaslide {

// Values [first, first + out.size()) of a parameter as its ParamSpec says: element i is a function of (seed, series, i).
void fill_initial(std::span<float> out, const ParamSpec& param, uint64_t seed, uint64_t series, int64_t first = 0);

// Writes a model directory whose parameters start as the network's ParamSpecs say. Element i of the tensor with canonical
// number t (io/wan_names.h) is a function of (seed, t, i) alone. `dtype`: F32 or BF16. `replace` as in io/model_directory.h.
void init_model_directory(const std::string& path, const ModelConfig& config, uint64_t seed, DType dtype, bool replace, ThreadPool& pool,
                          StopToken stop = {});

}  // namespace megaslide
