// A configuration that is read, written, and read again is the same.
#pragma once
#include "config/load.h"
#include "tests/fuzz/fuzz.h"

namespace megaslide::fuzz {

template <class Parse>
void yaml_round_trip(std::string_view text, Parse parse) {
  std::string written;
  if (!accepts([&] { written = to_yaml(parse(text, "x.yaml")); })) return;
  MS_CHECK(to_yaml(parse(written, "x.yaml")) == written, "{}", written);
}

}  // namespace megaslide::fuzz
