// What an operation says when it fails.
#pragma once
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace megaslide::testing_support {

inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected '" << part << "' in: " << text;
}

}  // namespace megaslide::testing_support
