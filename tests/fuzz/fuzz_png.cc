// A picture of a frame folder.
#include "io/video.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Picture p;
  if (!fuzz::accepts([&] { p = decode_png(std::string(fuzz::text_of(data, size))); })) return 0;
  MS_CHECK(p.width > 0 && p.height > 0 && p.rgb.size() == static_cast<size_t>(p.width * p.height * 3));
  return 0;
}
