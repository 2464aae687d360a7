// Stored cases by the literal definitions, in three arithmetics: fp64 is the oracle, fp32 and bf16 are the plain
// computations that tolerances are derived from.
#pragma once
#include "attention_check/stored_case.h"

namespace megaslide {

enum class Arithmetic { kF64, kF32, kBf16 };

using NamedResults = std::map<std::string, std::vector<double>>;

// Every output and gradient of the case under its tensor's name.
NamedResults reference_results(const StoredCase& c, Arithmetic arithmetic);

// Keys that a query of `window` attention sees, ascending.
std::vector<int64_t> window_keys(const WindowShape& s, int64_t token);

}  // namespace megaslide
