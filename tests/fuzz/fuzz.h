// What the harnesses share. A harness gives its bytes to one parser; where that accepts them, what came out must hold together.
// An Error is an answer; every other end (an abort, another exception, a sanitizer's report, a limit) is a finding.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace megaslide::fuzz {

// Stops where `message` could not be printed: not UTF-8, or with characters that drive a terminal or turn the reading direction.
void require_printable(std::string_view message);

inline std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// False where `parse` refuses.
template <class F>
bool accepts(F&& parse) {
  try {
    parse();
    return true;
  } catch (const Error& e) {
    require_printable(e.what());
    return false;
  }
}

}  // namespace megaslide::fuzz
