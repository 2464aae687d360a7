// The index of a checkpoint in several files.
#include "io/shard_index.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ShardIndex index;
  if (!fuzz::accepts([&] { index = parse_shard_index(fuzz::text_of(data, size), "x.index.json"); })) return 0;
  MS_CHECK(!index.files.empty());
  for (const auto& [tensor, file] : index.files) MS_CHECK(!file.empty() && file != ".." && file.find('/') == std::string::npos);
  return 0;
}
