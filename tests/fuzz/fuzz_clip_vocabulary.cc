// CLIP's vocabulary: merges.txt, the same gzipped, or a tokenizer.json.
#include "tests/fuzz/fuzz.h"
#include "text/clip_vocabulary.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ClipVocabulary v;
  if (!fuzz::accepts([&] { v = parse_clip_vocabulary(fuzz::text_of(data, size), "merges.txt"); })) return 0;
  MS_CHECK(!v.merged.empty() && v.merged.size() <= static_cast<size_t>(ClipVocabulary::kPublishedMerges));
  for (const auto& [pair, id] : v.merged) {
    const auto left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair & 0xffffffff);
    MS_CHECK(left >= 0 && left < id && right >= 0 && right < id && id >= ClipVocabulary::kFirstMerge && id < v.start(), "{}", id);
  }
  return 0;
}
