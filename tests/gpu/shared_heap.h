// The heap of a test program in memory that host and GPU both read and write, so that tests made for the emulator, which
// hand a kernel whatever memory they have, run on a GPU as they are.
#pragma once
#include <cstddef>

namespace megaslide::testing_support {

// Memory that operator new takes from here on, in this whole program, from `bytes` of managed memory; what was taken
// before stays where it is. Once a program, after the device is known to be there. Throws Error where CUDA fails.
void start_shared_heap(size_t bytes);

// Whether p lies in it.
bool in_shared_heap(const void* p);

}  // namespace megaslide::testing_support
