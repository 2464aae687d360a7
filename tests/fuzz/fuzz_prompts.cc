// A file of prompts for sampling, and the file names made of them.
#include <set>

#include "base/unicode.h"
#include "diffusion/prompts.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> prompts;
  if (!fuzz::accepts([&] { prompts = parse_prompts(fuzz::text_of(data, size), "prompts.txt"); })) return 0;
  const std::vector<NamedPrompt> named = name_prompts(prompts);
  MS_CHECK(!prompts.empty() && named.size() == prompts.size());
  std::set<std::string> stems;
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string& stem = named[i].stem;
    MS_CHECK(named[i].prompt == prompts[i] && is_clean_utf8(prompts[i]) && is_clean_utf8(stem), "{}", stem);
    MS_CHECK(stem.size() <= 230 && stem.find('/') == std::string::npos && stem[0] != '.' && stem[0] != '-', "{}", stem);
    MS_CHECK(stems.insert(to_nfc(fold_case(to_nfc(stem)))).second, "two prompts named {}", stem);
  }
  return 0;
}
