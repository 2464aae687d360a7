// What this process computes with, for --version; null in a program that computes nothing.
#pragma once
#include <string>

#include "base/optional_entry.h"

namespace megaslide {

// "avx512 vectors, amx tiles, oneDNN avx512_core_amx": the sets of kernels through Highway (kernels/vector_set.h), of bf16
// products (kernels/tile/unit.h; "no tiles": operands are widened to fp32) and of oneDNN.
MS_OPTIONAL std::string instructions_in_use();

}  // namespace megaslide
