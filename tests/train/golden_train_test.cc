// Five steps against torch: data, objective, gradients, clipping, AdamW, through the whole trainer.
#include <gtest/gtest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "golden_state.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

const std::string kData = std::string(MEGASLIDE_TEST_DATA) + "/train";

RunConfig golden_run(const std::string& output, const std::vector<std::string>& more) {
  std::vector<std::string> sets{"model.path=" + kData + "/init", "data.replay=" + kData + "/data.safetensors", "output.output_dir=" + output,
                                "train.max_train_steps=5", "optimizer.learning_rate=1e-3", "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8",
                                "optimizer.weight_decay=0.1", "train.max_grad_norm=1"};
  sets.insert(sets.end(), more.begin(), more.end());
  return make_run_config(sets);
}

TEST(GoldenTraining, FiveStepsEqualTorch) {
  const TemporaryFolder folder;
  const TrainSummary s = testing::train(golden_run(folder / "out", {"model.compute_dtype=fp32", "optimizer.masters=fp32", "optimizer.gradients=fp32"}));
  const ModelDirectory got = ModelDirectory::open(s.checkpoint);
  const SafetensorsFile golden = SafetensorsFile::open(kData + "/state_step5.safetensors");
  testing::expect_golden_state(got, golden);
  const double losses[] = {31.127865132160622, 0.12160126721820436, 32.35797336772005, 0.07851315434232822, 17.874787171239447};
  const double norms[] = {1.9620234433061257, 0.7780025249957042, 1.8893595047828713, 0.5355646500973581, 1.42271300186082};
  const bool clipped[] = {true, false, true, false, true};
  std::ifstream lines(folder / "out/metrics.jsonl");
  std::string line;
  for (int i = 0; std::getline(lines, line); ++i) {
    const auto j = nlohmann::json::parse(line);
    EXPECT_NEAR(j["loss"].get<double>(), losses[i], 4 * 7.4e-7 * losses[i]);
    EXPECT_NEAR(j["grad_norm"].get<double>(), norms[i], 4 * 1.1e-6 * norms[i]);
    EXPECT_EQ(j["clipped"].get<bool>(), clipped[i]);
    EXPECT_EQ(j["tokens"].get<int>(), 36);
  }
}

TEST(GoldenTraining, SplitMastersAreFp32Masters) {
  const TemporaryFolder folder;
  const TrainSummary split = testing::train(golden_run(folder / "split", {"optimizer.masters=split"}));
  const TrainSummary fp32 = testing::train(golden_run(folder / "fp32", {"optimizer.masters=fp32"}));
  EXPECT_EQ(split.state_hash, fp32.state_hash);
  // 16-bit operands: the parameters move by about lr a step, so they stay within a small part of that of torch's.
  EXPECT_LT(testing::state_distance(ModelDirectory::open(split.checkpoint), SafetensorsFile::open(kData + "/state_step5.safetensors"), "param"), 5e-3);
}

TEST(GoldenTraining, TooFewStoredStepsAreAnErrorThatSaysHowMany) {
  const TemporaryFolder folder;
  try {
    testing::train(golden_run(folder / "out", {"train.max_train_steps=6"}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--set train.max_train_steps=5"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace megaslide
