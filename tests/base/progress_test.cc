#include "base/progress.h"

#include <gtest/gtest.h>

#include <vector>

namespace megaslide {
namespace {

TEST(RateEstimator, SteadyWork) {
  RateEstimator r;
  EXPECT_EQ(r.rate(), 0);
  EXPECT_LT(r.eta(0, 100), 0);
  for (int i = 1; i <= 10; ++i) r.add(0.5 * i, 2.0 * i);
  EXPECT_NEAR(r.rate(), 4, 1e-12);
  EXPECT_NEAR(r.eta(20, 100), 20, 1e-9);
  EXPECT_EQ(r.eta(100, 100), 0);
  EXPECT_LT(r.eta(20, 0), 0) << "an unknown total has no end";
}

TEST(RateEstimator, FollowsAChangeOfSpeed) {
  RateEstimator r(10);
  double t = 0, n = 0;
  for (int i = 0; i < 100; ++i) r.add(t += 1, n += 10);
  for (int i = 0; i < 30; ++i) r.add(t += 1, n += 1);
  // After three time constants e^-3 of the weight is still old: about 1 + 9·0.05.
  EXPECT_GT(r.rate(), 1.2);
  EXPECT_LT(r.rate(), 1.7);
}

TEST(RateEstimator, WorkWithoutMeasurableTimeCountsLater) {
  RateEstimator r;
  r.add(0, 5);
  r.add(1, 10);
  EXPECT_NEAR(r.rate(), 10, 1e-12);
}

TEST(RateEstimator, GoingBackRestarts) {
  RateEstimator r;
  r.add(1, 100);
  r.add(2, 0);
  EXPECT_EQ(r.rate(), 0);
  r.add(3, 2);
  EXPECT_NEAR(r.rate(), 2, 1e-12);
}

TEST(Progress, SendsFirstAndLast) {
  std::vector<ProgressEvent> events;
  auto previous = set_progress_sink([&](const ProgressEvent& e) { events.push_back(e); });
  {
    Progress p("shard", 1000, "tensors");
    for (int i = 1; i <= 1000; ++i) p.update(i, "name");
  }
  set_progress_sink(previous);
  ASSERT_GE(events.size(), 2u);
  EXPECT_LT(events.size(), 500u) << "events are limited in rate";
  EXPECT_FALSE(events.front().finished);
  EXPECT_EQ(events.front().label, "shard");
  EXPECT_EQ(events.front().detail, "name");
  EXPECT_TRUE(events.back().finished);
  EXPECT_EQ(events.back().done, 1000);
  EXPECT_EQ(events.back().eta, 0);
}

}  // namespace
}  // namespace megaslide
