// What bench-dsa does: check or measure.
#pragma once
#include <string>
#include <vector>

#include "attention_check/bench.h"
#include "common/run_tool.h"

namespace megaslide {

// The stored case files[0] with the parameters of files[1] or those beside it, or all cases of the folder files[0]. `only`:
// an instruction set, or empty. emulated: the CUDA kernels too, under the emulator. The exit status.
int check(Tool& tool, const std::vector<std::string>& files, const std::string& only, bool emulated);

// Operator by operator, each with 1, 2, 4 … 2^doublings times the frames. One that the memory doesn't hold ends with a
// warning.
std::vector<BenchRow> measure(Tool& tool, const std::vector<std::string>& ops, const BenchOptions& options, int64_t doublings);

}  // namespace megaslide
