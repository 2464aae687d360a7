// A tokenizer.json, asked for its byte_fallback.
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer_json.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepts([&] { byte_fallback_of(fuzz::text_of(data, size), "tokenizer.json"); });
  return 0;
}
