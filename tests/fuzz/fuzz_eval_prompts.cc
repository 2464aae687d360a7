// Prompts that videos should exist for: the same text as JSON and as lines.
#include <set>

#include "eval/names.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  for (const char* name : {"x.json", "x.txt"})
    fuzz::accepts([&] {
      std::set<std::string> seen;
      for (const PromptEntry& e : parse_prompt_entries(text, name)) MS_CHECK(!e.prompt.empty() && seen.insert(e.prompt).second, "{}", e.prompt);
    });
  return 0;
}
