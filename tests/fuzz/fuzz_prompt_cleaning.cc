// A prompt's cleaning before its tokenizer.
#include "base/utf8.h"
#include "tests/fuzz/fuzz.h"
#include "text/clean.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const std::string clean = clean_prompt(text);
  MS_CHECK(find_invalid_utf8(clean) == clean.size() && clean.size() <= 16 * size);
  MS_CHECK(clean.empty() || (clean.front() != ' ' && clean.back() != ' ' && clean.find("  ") == std::string::npos && clean.find('\n') == std::string::npos));
  find_mojibake(text);
  return 0;
}
