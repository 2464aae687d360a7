// What fits: the longest clip, the largest picture, and the fewest settings that make a run fit.
#include "plan/fit.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "config/load.h"
#include "config/search_path.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing::error_of;

struct Fit : ::testing::Test {
  void SetUp() override { set_config_directories({MEGASLIDE_SOURCE_DIR "/configs"}); }
};

PlanRequest request_of(const std::vector<std::string>& sets, const ClipSize& clips) {
  auto all = sets;
  all.push_back("model.path=wan2.1-t2v-1.3b");
  return plan_request(make_run_config(all), load_machine_config("rtx4090-128gb"), clips);
}

TEST_F(Fit, TheNextLongerClipAndLargerPictureDoNotFit) {
  const FitReport report = find_what_fits(request_of({}, {81, 832, 480}));
  EXPECT_EQ(report.num_frames, 81);
  EXPECT_EQ(report.width, 832);
  EXPECT_EQ(report.height, 480);
  ASSERT_EQ(report.rows.size(), 6u);
  for (const FitRow& row : report.rows) {
    std::vector<std::string> sets;
    for (size_t at = row.settings.find("--set "); at != std::string::npos; at = row.settings.find("--set ", at + 1))
      sets.push_back(row.settings.substr(at + 6, row.settings.find(" --set", at + 6) - at - 6));
    const auto fits = [&](const ClipSize& clips) { return make_plan(request_of(sets, clips)).fits(); };
    ASSERT_GT(row.num_frames, 1) << row.settings;
    EXPECT_TRUE(fits({row.num_frames, 832, 480})) << row.settings;
    EXPECT_FALSE(fits({row.num_frames + 4, 832, 480})) << row.settings;
    EXPECT_TRUE(fits({81, row.width, row.height})) << row.settings;
    EXPECT_FALSE(fits({81, row.width + 16, row.height + 16})) << row.settings;
    EXPECT_GT(row.num_frames_seconds, 0);
  }
  EXPECT_GT(report.rows[1].num_frames, report.rows[0].num_frames) << "inputs on the host leave room for frames";
  ASSERT_GE(report.models.size(), 6u);
  for (size_t i = 1; i < report.models.size(); ++i) EXPECT_GE(report.models[i].parameters, report.models[i - 1].parameters);
  EXPECT_TRUE(report.models.front().fits);
  EXPECT_EQ(report.models.front().num_frames, report.rows.front().num_frames) << "it is the run's own model";
  EXPECT_FALSE(report.models.back().fits);
  EXPECT_EQ(report.models.back().num_frames, 0) << "105 B parameters beside a desktop";
}

TEST_F(Fit, WithoutAnyLimitThereIsNothingToFind) {
  const auto request = plan_request(make_run_config({"model.path=tiny"}), {}, {9, 64, 64});
  EXPECT_NE(error_of([&] { find_what_fits(request); }).find("no limit is known"), std::string::npos);
}

// The device needs inputs elsewhere, the host less state.
TEST_F(Fit, RemediesAreAsFewSettingsAsAreNeeded) {
  PlanRequest r = request_of({}, {5, 832, 480});
  const Plan whole = make_plan(r);
  PlanRequest host = r, layer = r;
  host.run.stream.stash = RunConfig::Stash::kHost;
  layer.run.train.clip = RunConfig::Clip::kLayer;
  r.run.stream.device_budget = (whole.device.peak + make_plan(host).device.peak) / 2;
  r.run.stream.host_budget = make_plan(layer).host.total() + make_plan(host).host.activations + (int64_t{64} << 20);
  ASSERT_LT(r.run.stream.host_budget, whole.host.total());
  const Plan plan = make_plan(r);
  ASSERT_EQ(plan.misfits.size(), 2u);
  const auto has = [&](const std::string& remedy) { return std::find(plan.remedies.begin(), plan.remedies.end(), remedy) != plan.remedies.end(); };
  EXPECT_TRUE(has("--set stream.stash=host --set optimizer.moments=int8"));
  EXPECT_TRUE(has("--set stream.stash=recompute --set optimizer.moments=int8"));
  EXPECT_TRUE(has("--set stream.stash=host --set stream.tier=nvme"));
}

}  // namespace
}  // namespace megaslide
