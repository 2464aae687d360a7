// C entries for Python: an exception becomes a line on stderr and the status 1.
#pragma once
#include <cstdio>
#include <exception>

namespace megaslide {

template <class F>
int guarded(F body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace megaslide
