#include "base/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace megaslide::fuzz {

void require_printable(std::string_view message) {
  MS_CHECK(find_invalid_utf8(message) == message.size(), "a message that is not UTF-8: {}", message);
  for (const char32_t c : decode_utf8(message)) {
    const bool control = (c < 0x20 && c != '\n') || (c >= 0x7f && c < 0xa0);
    const bool direction = (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    MS_CHECK(!control && !direction, "a message with U+{:04X}: {}", static_cast<uint32_t>(c), message);
  }
}

}  // namespace megaslide::fuzz
