// How much memory this process may still take.
#pragma once
#include <cstdint>

namespace megaslide {

// Bytes available without swapping: the kernel's MemAvailable, or what the control group leaves where that is less. 0
// where neither can be read.
int64_t available_memory();

}  // namespace megaslide
