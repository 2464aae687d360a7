#include <cstddef>
#include <cstring>

#include "kernels/memory/memory.h"

namespace megaslide::cpu {

namespace {
constexpr int64_t kGrainBytes = 1 << 18;
constexpr int64_t kGrain = 1 << 16;  // elements
}  // namespace

void fill_zero(Stream& stream, void* out, int64_t bytes) {
  stream.parallel_for(bytes, kGrainBytes, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<std::byte*>(out) + begin, 0, static_cast<size_t>(end - begin));
  });
}

void copy_memory(Stream& stream, void* out, const void* in, int64_t bytes) {
  stream.parallel_for(bytes, kGrainBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(out) + begin, static_cast<const std::byte*>(in) + begin,
                static_cast<size_t>(end - begin));
  });
}

void add_in_place(Stream& stream, float* out, const float* in, int64_t n) {
  stream.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] += in[i];
  });
}

void widen_float(Stream& stream, float* y, const void* x, int64_t n, DType dtype) {
  stream.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    convert_to_f32(y + begin, static_cast<const std::byte*>(x) + begin * dtype_bytes(dtype), dtype, end - begin);
  });
}

}  // namespace megaslide::cpu
