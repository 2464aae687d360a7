// A list of videos to score: the same text as JSON, JSON Lines, CSV and plain lines.
#include "eval/manifest.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  for (const char* name : {"x.json", "x.jsonl", "x.csv", "x.txt"})
    fuzz::accepts([&] {
      for (const ManifestRow& row : parse_manifest_rows(text, name)) MS_CHECK(row.count("path") == 1);
    });
  return 0;
}
