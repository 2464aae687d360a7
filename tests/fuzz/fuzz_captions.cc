// A caption's bytes in whatever encoding to UTF-8 lines.
#include "base/utf8.h"
#include "data/caption.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const DecodedText decoded = decode_text(fuzz::text_of(data, size));
  MS_CHECK(find_invalid_utf8(decoded.text) == decoded.text.size());
  MS_CHECK(decoded.text.find('\r') == std::string::npos && decoded.text.find('\0') == std::string::npos);
  MS_CHECK(decoded.text.size() <= 3 * size);
  for (const std::string& n : decoded.notes) fuzz::require_printable(n);
  const std::string trimmed = trim(decoded.text);
  MS_CHECK(trim(trimmed) == trimmed && decoded.text.find(trimmed) != std::string::npos);
  return 0;
}
