#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "data/prefetch.h"

namespace megaslide {
namespace {

using Numbers = Prefetch<int>;

TEST(Prefetch, GivesResultsInOrder) {
  for (const int threads : {1, 2, 5}) {
    Numbers numbers(threads, 40, 1000, [](size_t i) {
      std::this_thread::sleep_for(std::chrono::microseconds((i * 37) % 11 * 50));
      return static_cast<int>(i);
    }, [](const int&) { return 1; });
    for (int i = 0; i < 40; ++i) EXPECT_EQ(numbers.next(), i);
  }
}

TEST(Prefetch, HoldsNoMoreThanItsBudget) {
  std::atomic<int> made{0};
  Numbers numbers(4, 100, 30, [&](size_t i) { return ++made, static_cast<int>(i); }, [](const int&) { return 10; });
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_LE(made.load(), i + 4) << "what waits, and the one that is next";
    EXPECT_EQ(numbers.next(), i);
  }
  EXPECT_LE(numbers.most_waiting(), 40);
}

TEST(Prefetch, AnItemAboveTheBudgetIsMadeAlone) {
  Numbers numbers(4, 10, 5, [](size_t i) { return static_cast<int>(i); }, [](const int&) { return 100; });
  for (int i = 0; i < 10; ++i) EXPECT_EQ(numbers.next(), i);
  EXPECT_LE(numbers.most_waiting(), 100);
}

TEST(Prefetch, FailuresComeInTheirTurnAndLeavingEarlyIsFine) {
  Numbers numbers(3, 100, 1000, [](size_t i) {
    if (i == 2) throw std::runtime_error("two");
    return static_cast<int>(i);
  }, [](const int&) { return 1; });
  EXPECT_EQ(numbers.next(), 0);
  EXPECT_EQ(numbers.next(), 1);
  EXPECT_THROW(numbers.next(), std::runtime_error);
  EXPECT_EQ(numbers.next(), 3);
  const Numbers none(3, 0, 10, [](size_t) { return 0; }, [](const int&) { return 1; });
}

}  // namespace
}  // namespace megaslide
