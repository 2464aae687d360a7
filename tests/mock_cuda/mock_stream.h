// The order of work on streams of the mock CUDA runtime.
#pragma once
#include <functional>

namespace megaslide::mock_cuda {

// Runs `work` after what was queued on the stream before (a cudaStream_t); at once where it is nullptr.
void run_on(void* stream, std::function<void()> work);

}  // namespace megaslide::mock_cuda
