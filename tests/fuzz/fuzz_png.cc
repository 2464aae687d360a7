// A picture of a frame folder.
#include <zlib.h>

#include <algorithm>

#include "io/video.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Picture p;
  if (!fuzz::accepts([&] { p = decode_png(std::string(fuzz::text_of(data, size))); })) return 0;
  MS_CHECK(p.width > 0 && p.height > 0 && p.rgb.size() == static_cast<size_t>(p.width * p.height * 3));
  return 0;
}

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION  // with libFuzzer
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr size_t kSignature = 8, kHead = 8, kSum = 4;

uint32_t big_endian(const uint8_t* p) { return static_cast<uint32_t>(p[0]) << 24 | static_cast<uint32_t>(p[1]) << 16 | static_cast<uint32_t>(p[2]) << 8 | p[3]; }

void put_big_endian(uint8_t* p, size_t value) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

}  // namespace

// Every chunk ends in a checksum, and what does not match is refused before it is looked at: lengths and sums are mended.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned) {
  size = LLVMFuzzerMutate(data, size, max_size);
  constexpr uint8_t signature[kSignature] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  if (size < kSignature) return size;
  std::copy(signature, signature + kSignature, data);
  for (size_t at = kSignature; at + kHead + kSum <= size;) {
    const size_t length = std::min<size_t>(big_endian(data + at), size - at - kHead - kSum);
    put_big_endian(data + at, length);
    put_big_endian(data + at + kHead + length, crc32(0, data + at + 4, static_cast<uInt>(length + 4)));
    at += kHead + length + kSum;
  }
  return size;
}
#endif
