// The vector instruction sets that kernels through Highway are compiled for. The processor's best is used unless limited.
// Results of two sets differ in rounding only where the header of a kernel says so.
#pragma once
#include <string>
#include <vector>

namespace megaslide {

// What this processor and build have, best first: of "avx512", "avx2" and "baseline".
std::vector<std::string> vector_sets();

// From here on no better set than `best`, one of vector_sets(), is used by this process; the first one lifts the limit.
void limit_vector_set(const std::string& best);

}  // namespace megaslide
