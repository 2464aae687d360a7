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
    EXPECT_NE(e.message().find("m.yaml:5:29: dsa.offsets: net+motion goes with the modes full and slice"), std::string::npos) << e.message();
  }
  EXPECT_THROW(parse_model_config(sizes + "dsa: {motion_share: 1.5}\n", "m.yaml"), Error);
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
