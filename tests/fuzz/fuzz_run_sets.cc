// What --set takes: one key=value a line.
#include <sstream>

#include "tests/fuzz/yaml_round_trip.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream lines{std::string(fuzz::text_of(data, size))};
  std::vector<std::string> sets;
  for (std::string line; std::getline(lines, line);) sets.push_back(line);
  std::string written;
  if (!fuzz::accepts([&] { written = to_yaml(make_run_config(sets)); })) return 0;
  MS_CHECK(to_yaml(parse_run_config(written, "x.yaml")) == written, "{}", written);
  return 0;
}
