#include "model/init_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/temporary_folder.h"
#include "base/error.h"
#include "io/shard.h"
#include "model/wan.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

ModelConfig small_config() {
  ModelConfig c;
  c.name = "small";
  c.dim = 48, c.heads = 4, c.ffn_dim = 64, c.layers = 3, c.text_dim = 20, c.freq_dim = 32;
  c.attention.kind = AttentionKind::kDsa;
  c.attention.per_layer = {AttentionKind::kDsa, AttentionKind::kWindow, AttentionKind::kDsa};
  return c;
}

// Files, hashes and slabs follow one order; the two lists are written in different rooms.
TEST(WanNames, AgreeWithTheNetwork) {
  for (const DsaMode mode : {DsaMode::kFull, DsaMode::kSlice, DsaMode::kRigid}) {
    ModelConfig c = small_config();
    c.attention.dsa.mode = mode;
    int64_t parameters = 0;
    for (int64_t part = -1; part <= c.layers; ++part) {
      const auto params = part < 0 ? wan_embedding_params(c) : part == c.layers ? wan_head_params(c) : wan_block_params(c, part);
      const auto names = wan_tensors(c, part);
      const std::string prefix = part >= 0 && part < c.layers ? "blocks." + std::to_string(part) + "." : "";
      ASSERT_EQ(params.size(), names.size());
      for (size_t i = 0; i < params.size(); ++i) {
        EXPECT_EQ(names[i].name, prefix + params[i].name);
        EXPECT_EQ(names[i].shape, params[i].shape) << names[i].name;
        EXPECT_EQ(names[i].original.empty(), is_dsa_tensor(names[i].name));
        parameters += element_count(params[i].shape);
      }
    }
    EXPECT_EQ(parameters, parameter_count(c));
  }
}

TEST(InitModel, ValuesDependOnSeedAloneAndHaveTheirScale) {
  TemporaryFolder folder;
  const ModelConfig c = small_config();
  ThreadPool one(1), three(3);
  init_model_directory(folder / "a", c, 7, DType::kF32, false, one);
  init_model_directory(folder / "b", c, 7, DType::kF32, false, three);
  init_model_directory(folder / "c", c, 8, DType::kF32, false, one);
  const auto a = ModelDirectory::open(folder / "a");
  EXPECT_EQ(hash_state(a), hash_state(ModelDirectory::open(folder / "b")));
  EXPECT_NE(hash_state(a), hash_state(ModelDirectory::open(folder / "c")));
  EXPECT_EQ(a.manifest().source.seed, 7u);
  EXPECT_EQ(a.manifest().parameters, parameter_count(c));
  // Uniform within ±sqrt(6/(in+out)): variance 2/(in+out). 2304 and 3072 values: 10% is about four deviations.
  for (const auto& [name, outputs, inputs] : {std::tuple("blocks.1.attn1.to_q.weight", 48, 48), std::tuple("blocks.1.ffn.net.2.weight", 48, 64)}) {
    const auto t = HostTensor::f32_from(a.layer(1).view(name));
    double squares = 0, largest = 0;
    for (int64_t i = 0; i < t.elements(); ++i) {
      squares += t.f32()[i] * t.f32()[i];
      largest = std::max(largest, std::abs(static_cast<double>(t.f32()[i])));
    }
    EXPECT_NEAR(squares / static_cast<double>(t.elements()) * (inputs + outputs) / 2, 1, 0.1) << name;
    EXPECT_LE(largest, std::sqrt(6.0 / (inputs + outputs)) * (1 + 1e-6)) << name;
  }
  const auto q0 = HostTensor::f32_from(a.layer(0).view("blocks.0.attn1.to_q.weight"));
  const auto q1 = HostTensor::f32_from(a.layer(1).view("blocks.1.attn1.to_q.weight"));
  EXPECT_NE(q0.f32()[0], q1.f32()[0]) << "layers have series of their own";
  EXPECT_EQ(HostTensor::f32_from(a.head().view("proj_out.weight")).f32()[5], 0);
  EXPECT_EQ(HostTensor::f32_from(a.layer(0).view("blocks.0.norm2.weight")).f32()[5], 1);
}

TEST(InitModel, MotionTermIsInForceInItsShareOfTheGroups) {
  for (const auto& [groups, share, ones] : {std::tuple(4, 0.5, 2), {3, 0.5, 2}, {3, 1 / 3.0, 1}, {4, 0.0, 0}, {4, 1.0, 4}, {4, 0.01, 1}}) {
    ModelConfig c = small_config();
    c.attention.dsa.groups = groups;
    c.attention.dsa.motion_share = share;
    for (const ParamSpec& p : wan_block_params(c, 0)) {
      if (p.name != "attn1.offset_net.motion_gain") continue;
      std::vector<float> whole(static_cast<size_t>(groups)), expected(whole.size());
      std::fill(expected.end() - ones, expected.end(), 1.f);
      fill_initial(whole, p, 1, 2);
      EXPECT_EQ(whole, expected) << groups << " " << share;
      std::vector<float> last(1);  // a piece of the tensor
      fill_initial(last, p, 1, 2, groups - 1);
      EXPECT_EQ(last[0], expected.back());
    }
  }
}

TEST(InitModel, Bf16IsTheRoundedF32) {
  TemporaryFolder folder;
  ThreadPool pool(2);
  init_model_directory(folder / "a", small_config(), 1, DType::kF32, false, pool);
  init_model_directory(folder / "b", small_config(), 1, DType::kBF16, false, pool);
  const auto a = ModelDirectory::open(folder / "a"), b = ModelDirectory::open(folder / "b");
  EXPECT_EQ(b.manifest().dtype, "BF16");
  const auto x = HostTensor::f32_from(a.layer(2).view("blocks.2.attn2.to_v.weight"));
  const auto y = HostTensor::f32_from(b.layer(2).view("blocks.2.attn2.to_v.weight"));
  for (int64_t i = 0; i < x.elements(); ++i) ASSERT_EQ(to_float(to_bf16(x.f32()[i])), y.f32()[i]);
}

TEST(InitModel, ExistingFoldersAndWrongConfigsAreRefused) {
  TemporaryFolder folder;
  ThreadPool pool(1);
  ModelConfig c = small_config();
  init_model_directory(folder / "a", c, 1, DType::kF32, false, pool);
  EXPECT_THROW(init_model_directory(folder / "a", c, 1, DType::kF32, false, pool), Error);
  EXPECT_NO_THROW(init_model_directory(folder / "a", c, 2, DType::kF32, true, pool));
  c.heads = 5;
  EXPECT_THROW(init_model_directory(folder / "b", c, 1, DType::kF32, false, pool), Error);
}

}  // namespace
}  // namespace megaslide
