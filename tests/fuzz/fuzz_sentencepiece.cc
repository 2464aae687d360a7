// A sentencepiece model's message, and the one written for the library.
#include "tests/fuzz/fuzz.h"
#include "text/spiece_model.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  SentencePieceModel model;
  if (!fuzz::accepts([&] { model = parse_sentencepiece_model(fuzz::text_of(data, size), "spiece.model"); })) return 0;
  const std::string text = serialize_sentencepiece_model(model);
  const SentencePieceModel second = parse_sentencepiece_model(text, "again");
  MS_CHECK(second.pieces.size() == model.pieces.size() && second.charsmap == model.charsmap && serialize_sentencepiece_model(second) == text);
  return 0;
}
