#include "eval/dimensions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/statistics.h"

namespace megaslide {
namespace {

using Json = nlohmann::json;

Json golden() {
  std::ifstream in(std::string(MEGASLIDE_TEST_DATA) + "/eval/aggregate.json");
  return Json::parse(in);
}

TEST(Dimensions, BoundsWeightsAndFamilies) {
  const Json bounds = golden()["bounds"];
  ASSERT_EQ(bounds.size(), 16u);
  for (const auto& [name, want] : bounds.items()) {
    SCOPED_TRACE(name);
    const Dimension& d = require_dimension(name);
    EXPECT_EQ(d.low, want["min"].get<double>());
    EXPECT_EQ(d.high, want["max"].get<double>());
    EXPECT_EQ(d.weight, want["weight"].get<double>());
    EXPECT_EQ(d.family == DimensionFamily::kQuality, want["family"] == "quality");
  }
}

TEST(Dimensions, UnknownNameSuggestsTheNearest) {
  for (const char* name : {"temporal_flicker", "flicker", "temporal_flikcering"}) {
    try {
      require_dimension(name);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      EXPECT_EQ(e.remedy(), "did you mean temporal_flickering?");
    }
  }
}

TEST(Aggregate, EqualsTheGoldenSets) {
  const Json sets = golden()["sets"];
  ASSERT_EQ(sets.size(), 10u);
  for (const auto& [name, set] : sets.items()) {
    SCOPED_TRACE(name);
    std::map<std::string, double> raw;
    for (const auto& [d, v] : set["raw"].items()) raw[d] = v.get<double>();
    const Aggregate a = aggregate_scores(raw);
    EXPECT_EQ(a.present, set["ours"]["present"].get<int>());
    EXPECT_EQ(a.outside, set["ours"]["outside_0_1"].get<std::vector<std::string>>());
    for (const auto& [d, v] : set["normalised"].items()) EXPECT_NEAR(a.normalised.at(d), v.get<double>(), 1e-14) << d;
    const auto check = [&, &ours = set["ours"]](const std::optional<double>& got, const char* key) {
      const Json& want = ours[key];
      EXPECT_EQ(got.has_value(), !want.is_null()) << key;
      if (got && !want.is_null()) {
        EXPECT_NEAR(*got, want.get<double>(), 1e-14) << key;  // 16 roundings of values near 1
      }
      EXPECT_EQ(a.withheld.count(key), got ? 0u : 1u) << key;
    };
    check(a.quality, "quality");
    check(a.semantic, "semantic");
    check(a.total, "total");
  }
}

TEST(Aggregate, WithheldSaysWhatIsAbsent) {
  const Aggregate a = aggregate_scores({{"temporal_flickering", 0.97}, {"psnr", 30}});
  EXPECT_EQ(a.present, 1);
  EXPECT_EQ(a.withheld.at("total"), "partial: 1/16, total withheld");
  EXPECT_NE(a.withheld.at("quality").find("partial: 1/7"), std::string::npos);
  EXPECT_NE(a.withheld.at("quality").find("motion_smoothness"), std::string::npos);
  EXPECT_EQ(a.normalised.count("psnr"), 0u);
}

TEST(Aggregate, ClampIsOnlyWhatWasAskedFor) {
  const std::map<std::string, double> raw{{"temporal_flickering", 0.6}};
  EXPECT_LT(aggregate_scores(raw).normalised.at("temporal_flickering"), 0);
  EXPECT_EQ(aggregate_scores(raw, true).normalised.at("temporal_flickering"), 0);
}

TEST(Bootstrap, IsDeterministicAndCoversTheMean) {
  std::vector<double> v;
  for (int i = 0; i < 40; ++i) v.push_back(0.9 + 0.001 * (i * 17 % 40));
  const auto a = bootstrap_mean_ci95(v, 7, "temporal_flickering"), b = bootstrap_mean_ci95(v, 7, "temporal_flickering");
  ASSERT_TRUE(a);
  EXPECT_EQ(*a, *b);
  EXPECT_NE(*a, *bootstrap_mean_ci95(v, 8, "temporal_flickering"));
  EXPECT_NE(*a, *bootstrap_mean_ci95(v, 7, "psnr"));
  EXPECT_LT(a->first, mean_of(v));
  EXPECT_GT(a->second, mean_of(v));
  // Uniform over a width of 0.04: sigma of the mean is 0.04 / sqrt(12 * 40) = 0.00183, so the interval is 4 sigma =
  // 0.0072 wide; 2000 resamples place its ends to about 5%.
  EXPECT_NEAR(a->second - a->first, 0.0072, 0.0009);
}

TEST(Bootstrap, NoIntervalWhereThereIsNone) {
  EXPECT_FALSE(bootstrap_mean_ci95({}, 1, "x"));
  EXPECT_FALSE(bootstrap_mean_ci95({0.5}, 1, "x"));
  EXPECT_FALSE(bootstrap_mean_ci95({0.5, std::numeric_limits<double>::infinity()}, 1, "x"));
  const auto same = bootstrap_mean_ci95({0.1, 0.1, 0.1}, 1, "x");
  ASSERT_TRUE(same);
  EXPECT_EQ(same->first, 0.1);
  EXPECT_EQ(same->second, 0.1);
}

TEST(Statistics, SumsKeepSmallTerms) {
  EXPECT_EQ(stable_sum({1e16, 1, -1e16}), 1);
  EXPECT_TRUE(std::isnan(mean_of({})));
  EXPECT_TRUE(std::isinf(mean_of({std::numeric_limits<double>::infinity(), 3})));
}

}  // namespace
}  // namespace megaslide
