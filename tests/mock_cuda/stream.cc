#include "tests/mock_cuda/mock_stream.h"

namespace megaslide::mock_cuda {

void run_on(void*, std::function<void()> work) { work(); }

}  // namespace megaslide::mock_cuda
