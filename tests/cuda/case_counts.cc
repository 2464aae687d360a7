// With MEGASLIDE_COUNT_CASES=1 each test says how many cases it ran, and at the end all of them together.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/cuda/schedules.h"

namespace megaslide::testing_support {
namespace {

class CaseCounts : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { counted = {}; }
  void OnTestEnd(const testing::TestInfo& test) override {
    std::printf("%s.%s: %lld cases", test.test_suite_name(), test.name(), static_cast<long long>(counted.cases));
    if (counted.schedules > 0) std::printf(", each in %lld schedules", static_cast<long long>(counted.schedules));
    std::puts("");
    cases_ += counted.cases;
    runs_ += counted.cases * std::max<int64_t>(counted.schedules, 1);
  }
  void OnTestProgramEnd(const testing::UnitTest&) override {
    std::printf("together: %lld cases, %lld runs\n", static_cast<long long>(cases_), static_cast<long long>(runs_));
  }
  int64_t cases_ = 0, runs_ = 0;
};

const bool kListening = [] {
  if (std::getenv("MEGASLIDE_COUNT_CASES")) testing::UnitTest::GetInstance()->listeners().Append(new CaseCounts);
  return true;
}();

}  // namespace
}  // namespace megaslide::testing_support
