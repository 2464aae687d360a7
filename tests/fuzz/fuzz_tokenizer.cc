// A sentencepiece model through the library, which trusts what it is given: loaded, and used on text that it may not know.
#include "tests/fuzz/fuzz.h"
#include "text/tokenizer.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::accepts([&] {
    const Tokenizer tokenizer(fuzz::text_of(data, size), "spiece.model");
    for (const char* text : {"", "a fox runs", " \xe2\x96\x81 <unk></s>\n caf\xc3\xa9 \xe6\x97\xa5\xf0\x9f\xa6\x8a \xef\xbc\xa1\xef\xb8\x8f", "\xff\xfe\x80"}) {
      const TokenizedText t = tokenizer.encode(text, 16);
      MS_CHECK(!t.ids.empty() && t.ids.size() <= 16 && t.ids.back() == tokenizer.end_id());
      for (const int64_t id : t.ids) MS_CHECK(id >= 0 && id < tokenizer.size(), "{}", id);
    }
  });
  return 0;
}
