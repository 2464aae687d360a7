#include "tests/fuzz/yaml_round_trip.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::yaml_round_trip(fuzz::text_of(data, size), parse_machine_config);
  return 0;
}
