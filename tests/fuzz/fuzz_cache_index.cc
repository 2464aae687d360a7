// index.json of a latent cache.
#include "data/cache_index.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  CacheIndex index;
  if (!fuzz::accepts([&] { index = parse_cache_index(fuzz::text_of(data, size), "index.json"); })) return 0;
  for (const CachedClip& c : index.clips) {
    MS_CHECK(!c.key.empty() && c.key.find('/') == std::string::npos && c.latent.size() == 4 && element_count(c.latent) > 0, "{}", c.key);
    for (const int64_t cut : c.latent_cuts) MS_CHECK(cut > 0 && cut < c.latent[1], "{}", c.key);
  }
  const std::string text = cache_index_text(index);
  MS_CHECK(cache_index_text(parse_cache_index(text, "again")) == text);
  return 0;
}
