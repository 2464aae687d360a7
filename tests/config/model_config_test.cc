#include "config/model_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/load.h"
#include "config/search_path.h"

namespace megaslide {
namespace {

class ModelConfigTest : public testing::Test {
 protected:
  void SetUp() override { set_config_directories({MEGASLIDE_SOURCE_DIR "/configs"}); }
};

// Counts of the published checkpoints (spec wan.md A.1).
TEST_F(ModelConfigTest, ParametersOfPublishedModels) {
  EXPECT_EQ(parameter_count(load_model_config("wan2.1-t2v-1.3b")), 1418996800);
  EXPECT_EQ(parameter_count(load_model_config("wan2.1-t2v-14b")), 14288491584);
  EXPECT_EQ(parameter_count(load_model_config("wan2.2-t2v-a14b")), 14288491584);
  EXPECT_EQ(parameter_count(load_model_config("wan2.2-ti2v-5b")), 4999787712);
}

TEST_F(ModelConfigTest, ParametersOfTheOffsetNet) {
  ModelConfig c = load_model_config("tiny");
  c.attention.dsa.offsets = DsaOffsets::kNet;
  const int64_t dsa = parameter_count(c);
  c.attention.kind = AttentionKind::kDense;
  const int64_t dense = parameter_count(c);
  // Depthwise 27 D + D, LayerNorm 2 D, linear from D to 3·groups·K with bias, in each of 4 layers.
  EXPECT_EQ(dsa - dense, 4 * (30 * 192 + 193 * 3 * 3 * (3 * 7 * 7)));
  c.attention.kind = AttentionKind::kDsa;
  c.attention.dsa.mode = DsaMode::kSlice;
  EXPECT_EQ(parameter_count(c) - dense, 4 * (30 * 192 + 193 * 2 * 3 * 3));
  c.attention.dsa.mode = DsaMode::kRigid;
  EXPECT_EQ(parameter_count(c) - dense, 4 * (30 * 192 + 193 * 3 * 3));
  c.attention.per_layer = {AttentionKind::kDense, AttentionKind::kDsa, AttentionKind::kWindow, AttentionKind::kDense};
  EXPECT_EQ(parameter_count(c) - dense, 30 * 192 + 193 * 3 * 3);
}

TEST_F(ModelConfigTest, ParametersOfMotionTermAndPooledBranch) {
  ModelConfig c = load_model_config("tiny");
  c.attention.dsa.offsets = DsaOffsets::kNet;
  const int64_t net = parameter_count(c);
  c.attention.dsa.offsets = DsaOffsets::kNetMotion;
  // Projection to 16 channels, the scale of the scores, a gain a group, in each of 4 layers.
  EXPECT_EQ(parameter_count(c) - net, 4 * (16 * 192 + 1 + 3));
  c.attention.dsa.pooled = true;
  EXPECT_EQ(parameter_count(c) - net, 4 * (16 * 192 + 1 + 3 + 6));
  c.attention.kind = AttentionKind::kDense;
  const int64_t dense = parameter_count(c);
  c.attention.dsa.pooled = false;
  EXPECT_EQ(parameter_count(c), dense);
}

TEST_F(ModelConfigTest, MotionTermIsTheDefaultWhereThereIsOne) {
  const std::string sizes = "dim: 192\nheads: 6\nffn_dim: 64\nlayers: 1\n";
  EXPECT_TRUE(parse_model_config(sizes, "m.yaml").attention.dsa.motion());
  EXPECT_TRUE(parse_model_config(sizes + "dsa: {mode: slice}\n", "m.yaml").attention.dsa.motion());
  EXPECT_FALSE(parse_model_config(sizes + "dsa: {mode: rigid}\n", "m.yaml").attention.dsa.motion());
  EXPECT_FALSE(parse_model_config(sizes + "dsa: {offsets: net}\n", "m.yaml").attention.dsa.motion());
  EXPECT_TRUE(parse_model_config(sizes + "dsa: {offsets: net+motion, pooled: true}\n", "m.yaml").attention.dsa.pooled);
  try {
    parse_model_config(sizes + "dsa: {mode: rigid, offsets: net+motion}\n", "m.yaml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(e.message().find("m.yaml:5:29: dsa.offsets: net+motion and net+given go with the modes full and slice"), std::string::npos) << e.message();
  }
  EXPECT_THROW(parse_model_config(sizes + "dsa: {motion_share: 1.5}\n", "m.yaml"), Error);
}

TEST_F(ModelConfigTest, WindowsByHeadAndLayer) {
  const std::string text = R"(dim: 240
heads: 10
ffn_dim: 64
layers: 3
attention: dsa
dsa:
  kernel: [3, 5, 5]
  groups: 4
  windows:
    - {heads: 3, kernel: [9, 3, 3], reach: [0, 4, 4], mode: slice, groups: 2}
    - {heads: 6}
    - {heads: 1, mode: rigid}
    - {layers: [1], kernel: [1, 9, 9], mode: rigid}
)";
  const ModelConfig c = parse_model_config(text, "m.yaml");
  const DsaLayer first = c.attention.dsa.layer(0, 10), second = c.attention.dsa.layer(1, 10);
  ASSERT_EQ(first.runs.size(), 3u);
  EXPECT_EQ(first.runs[0].kernel, (std::array<int64_t, 3>{9, 3, 3}));
  EXPECT_EQ(first.runs[1].first, 3);
  EXPECT_EQ(first.runs[1].kernel, (std::array<int64_t, 3>{3, 5, 5}));
  EXPECT_EQ(first.runs[1].groups, 4);
  EXPECT_EQ(first.runs[2].groups, 1);  // at most its heads
  EXPECT_EQ(first.offset_outputs(), 2 * 2 * 9 + 3 * 4 * 75 + 3);
  EXPECT_TRUE(first.motion);
  ASSERT_EQ(second.runs.size(), 1u);
  EXPECT_EQ(second.runs[0].count, 10);
  EXPECT_FALSE(second.motion);  // rigid alone
  // Two layers of the first kind, one of the second.
  ModelConfig dense = c;
  dense.attention.kind = AttentionKind::kDense;
  EXPECT_EQ(parameter_count(c) - parameter_count(dense), 3 * 30 * 240 + 2 * (241 * first.offset_outputs() + 16 * 240 + 1 + 7) + 241 * 3 * 4);
  const ModelConfig again = parse_model_config(to_yaml(c), "again.yaml");
  EXPECT_EQ(again.attention.dsa.windows, c.attention.dsa.windows) << to_yaml(c);

  const auto message = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    try {
      parse_model_config(changed, "m.yaml");
    } catch (const Error& e) {
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_NE(message("heads: 6}", "heads: 5}").find("m.yaml:10:5: dsa.windows: those of layer 0 are for 9 heads, but there are 10"), std::string::npos) << message("heads: 6}", "heads: 5}");
  EXPECT_NE(message("heads: 6}", "heads: 7}").find("are for 11 heads"), std::string::npos);
  EXPECT_NE(message("layers: [1]", "layers: [3]").find("window 4 is for layer 3, but the layers are 0 to 2"), std::string::npos);
  EXPECT_NE(message("heads: 6}", "heads: 6, groups: 7}").find("layer 0 has a window of 6 heads in 7 groups"), std::string::npos);
  EXPECT_NE(message("heads: 6}", "head: 6}").find("m.yaml:11:8: dsa.windows: head: unknown key; did you mean heads?"), std::string::npos) << message("heads: 6}", "head: 6}");
  EXPECT_NE(message("mode: slice", "mode: slide").find("m.yaml:10:61: dsa.windows: mode: expected"), std::string::npos) << message("mode: slice", "mode: slide");
  EXPECT_NE(message("- {heads: 6}", "- 6").find("dsa.windows: expected a map"), std::string::npos) << message("- {heads: 6}", "- 6");
  // What every window has of its own, a run cannot change; what one inherits, it can.
  EXPECT_EQ(with_overrides(c, make_run_config({"model.dsa.kernel=[3,3,3]"})).attention.dsa.layer(0, 10).runs[1].kernel, (std::array<int64_t, 3>{3, 3, 3}));
  ModelConfig own = c;
  own.attention.dsa.windows = {{.kernel = std::array<int64_t, 3>{1, 9, 9}}};
  EXPECT_THROW(with_overrides(own, make_run_config({"model.dsa.kernel=[3,3,3]"})), Error);
}

TEST_F(ModelConfigTest, ScalePointsHaveTheirSize) {
  const auto dense = [](const char* name) {
    ModelConfig c = load_model_config(name);
    c.attention.kind = AttentionKind::kDense;
    return static_cast<double>(parameter_count(c));
  };
  EXPECT_NEAR(dense("megaslide-28b"), 28.7e9, 0.1e9);
  EXPECT_NEAR(dense("megaslide-33b"), 33.6e9, 0.1e9);
  EXPECT_NEAR(dense("megaslide-105b"), 105.8e9, 0.1e9);
  EXPECT_LE(parameter_count(load_model_config("tiny")), 5000000);
}

TEST_F(ModelConfigTest, EveryPresetLoadsAndReadsBack) {
  const std::vector<std::string> names = preset_names("models");
  ASSERT_EQ(names.size(), 8u);
  for (const std::string& name : names) {
    const ModelConfig c = load_model_config(name);
    EXPECT_EQ(c.name, name);
    const std::string yaml = to_yaml(c);
    EXPECT_EQ(to_yaml(parse_model_config(yaml, "copy.yaml")), yaml);
  }
}

TEST_F(ModelConfigTest, UnknownPresetSaysWhichThereAre) {
  try {
    load_model_config("tinny");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(e.what()).find("did you mean tiny?"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("wan2.1-t2v-1.3b"), std::string::npos) << e.what();
  }
  EXPECT_THROW(load_model_config("../models/tiny"), Error);
  EXPECT_THROW(load_model_config("no/such/file.yaml"), Error);
}

TEST_F(ModelConfigTest, EveryRelationIsChecked) {
  const ModelConfig good = load_model_config("tiny");
  const auto wrong = [&](auto change) {
    ModelConfig c = good;
    change(c);
    return model_config_errors(c).size();
  };
  EXPECT_EQ(model_config_errors(good).size(), 0u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.heads = 5; c.attention.dsa.groups = 1; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.heads = 64; }), 1u);  // three channels a head: RoPE needs pairs
  EXPECT_EQ(wrong([](ModelConfig& c) { c.attention.dsa.groups = 7; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.attention.dsa.kernel[1] = 0; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.attention.dsa.offsets = DsaOffsets::kNetMotion; c.attention.dsa.mode = DsaMode::kRigid; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.attention.dsa.motion_share = -0.1; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.attention.dsa.reach[0] = -1; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.attention.dsa.reach[0] = std::numeric_limits<double>::quiet_NaN(); }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.attention.per_layer = {AttentionKind::kDense}; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.in_channels = 48; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.freq_dim = 255; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.num_frames = 16; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.width = 60; }), 1u);
  EXPECT_EQ(wrong([](ModelConfig& c) { c.dim = 0; c.heads = 0; c.layers = 0; c.attention.dsa.groups = 0; }), 4u);
  ModelConfig two = good;
  two.heads = 5;
  two.fps = 0;
  try {
    validate(two);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("heads: "), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("fps: "), std::string::npos);
  }
}

TEST_F(ModelConfigTest, RelationsInAFileHaveTheirPlace) {
  try {
    parse_model_config("dim: 192\nheads: 5\nffn_dim: 64\nlayers: 1\ndsa: {groups: 1}\n", "m.yaml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "m.yaml:2:8: heads: expected a divisor of dim (192), got 5");
  }
  try {
    parse_model_config("dim: 192\nheads: 6\n", "m.yaml");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("ffn_dim: required"), std::string::npos);
    EXPECT_NE(e.message().find("layers: required"), std::string::npos);
  }
}

TEST_F(ModelConfigTest, RunOverrides) {
  const ModelConfig tiny = load_model_config("tiny");
  const ModelConfig c = with_overrides(tiny, make_run_config({"model.attention=dense", "model.dsa.groups=2", "model.dsa.kernel=[3,3,3]"}));
  EXPECT_EQ(c.attention.kind, AttentionKind::kDense);
  EXPECT_EQ(c.attention.dsa.groups, 2);
  EXPECT_EQ(c.attention.dsa.kernel, (std::array<int64_t, 3>{3, 3, 3}));
  EXPECT_EQ(c.attention.dsa.reach, tiny.attention.dsa.reach);
  EXPECT_THROW(with_overrides(tiny, make_run_config({"model.dsa.groups=7"})), Error);
  EXPECT_FALSE(with_overrides(tiny, make_run_config({"model.dsa.offsets=net"})).attention.dsa.motion());
  EXPECT_EQ(with_overrides(tiny, make_run_config({"model.dsa.motion_share=0.25"})).attention.dsa.motion_share, 0.25);
  EXPECT_TRUE(with_overrides(tiny, make_run_config({"model.dsa.pooled=true"})).attention.dsa.pooled);
  EXPECT_THROW(with_overrides(tiny, make_run_config({"model.dsa.offsets=net+motion", "model.dsa.mode=rigid"})), Error);
}

}  // namespace
}  // namespace megaslide
