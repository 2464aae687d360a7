#include "tests/fuzz/yaml_round_trip.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::yaml_round_trip(fuzz::text_of(data, size), [](std::string_view text, const std::string& name) { return parse_run_config(text, name); });
  return 0;
}
