// manifest.json of a model directory, and the ModelConfig in it.
#include <gtest/gtest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/model_config_json.h"
#include "io/shard.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

class Manifest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  std::string import(ImportOptions options = {}) {
    import_checkpoint(MEGASLIDE_TEST_DATA "/wan/dit/a/diffusers", folder_ / "m", options);
    return folder_ / "m";
  }
};

TEST(ModelConfigJson, ManifestsFromBeforeTheMotionTermAreWithoutIt) {
  ModelConfig c;
  c.dim = 48, c.heads = 4, c.ffn_dim = 64, c.layers = 2, c.attention.kind = AttentionKind::kDsa;
  c.attention.dsa.motion_share = 0.75, c.attention.dsa.pooled = true;
  nlohmann::json j = model_config_to_json(c);
  const DsaConfig same = model_config_from_json(j, "manifest").attention.dsa;
  EXPECT_TRUE(same.motion());
  EXPECT_EQ(same.motion_share, 0.75);
  EXPECT_TRUE(same.pooled);
  for (const char* key : {"offsets", "motion_share", "pooled"}) j["attention"]["dsa"].erase(key);
  const DsaConfig before = model_config_from_json(j, "manifest").attention.dsa;
  EXPECT_FALSE(before.motion());
  EXPECT_EQ(before.motion_share, 0);
  EXPECT_FALSE(before.pooled);
  // Nor does a model that holds no such parameters say where they should start.
  c.attention.kind = AttentionKind::kDense;
  EXPECT_EQ(model_config_from_json(model_config_to_json(c), "manifest").attention.dsa.motion_share, 0);
  j["attention"]["dsa"]["offsets"] = "motion";
  EXPECT_THROW(model_config_from_json(j, "manifest"), Error);
}

TEST_F(Manifest, IsReadStrictly) {
  const std::string path = import(), file = path + "/manifest.json", good = read_file(file);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(file) << text;
    return error_of([&] { ModelDirectory::open(path); });
  };
  expect_contains(with("embed.safetensors", "../embed.safetensors"), "not a plain relative name");
  expect_contains(with("\"dim\": 24", "\"dim\": \"24\""), "dim: expected an integer");
  expect_contains(with("\"heads\": 2", "\"heads\": 5"), "heads: expected a divisor of dim");
  expect_contains(with("\"dim\": 24", "\"dimm\": 24"), "unknown key \"dimm\"");
  expect_contains(with("\"kind\": \"dense\"", "\"kind\": \"dens\""), "expected one of dense");
  expect_contains(with("\"version\": 1", "\"version\": 2"), "format version 2");
  expect_contains(with("megaslide-model", "other"), "not the manifest of a MegaSlide model");
  expect_contains(with("\"layers\": 2", "\"layers\": 3"), "lists no layer-002.safetensors");
  expect_contains(with("\"layers\": 2", "\"layers\": 1"), "lists layer-001.safetensors, but its config has 1 layers");
  expect_contains(with("\"layers\": 2", "\"layers\": 1"), "remedy: ");
  expect_contains(with("\"ffn_dim\": 32", "\"ffn_dim\": 32, \"ffn_dim\": 32"), "duplicate key");
  std::ofstream(file) << good.substr(0, good.size() / 2);
  expect_contains(error_of([&] { ModelDirectory::open(path); }), "not valid JSON");
  std::ofstream(file) << good;
  EXPECT_NO_THROW(ModelDirectory::open(path));
  // Sizes that fit but tensors of another model.
  with("\"ffn_dim\": 32", "\"ffn_dim\": 48");
  expect_contains(error_of([&] { ModelDirectory::open(path).layer(0); }), "wrong shape: blocks.0.ffn.net.0.proj.weight is [32, 24], expected [48, 24]");
}

TEST_F(Manifest, KeepsEverything) {
  const auto model = ModelDirectory::open(import({.attention = AttentionKind::kDsa}));
  ModelManifest m = model.manifest();
  m.config.attention.per_layer = {AttentionKind::kWindow, AttentionKind::kDsa};
  m.config.attention.dsa = {{5, 3, 7}, {0, 1.5, 2}, DsaMode::kSlice, 1, std::nullopt, 0.5, false, {}};
  m.config.attention.dsa.windows = {{.layers = {1}, .heads = 1, .kernel = std::array<int64_t, 3>{1, 9, 9}, .reach = std::array<double, 3>{0, 1, 2.5}, .mode = DsaMode::kFull, .groups = 1}, {.layers = {1}}};
  m.config.codec = CodecKind::kHaar;
  m.config.text_encoder = TextEncoderKind::kHashedNgram;
  m.config.num_frames = 9;
  m.config.fps = 23.976;
  m.source.seed = 18446744073709551615u;
  m.state = "{\"step\":3}";
  const ModelManifest back = parse_manifest(manifest_to_text(m), "m");
  EXPECT_EQ(manifest_to_text(back), manifest_to_text(m));
  EXPECT_EQ(back.config.attention.per_layer, m.config.attention.per_layer);
  EXPECT_EQ(back.config.attention.dsa.windows, m.config.attention.dsa.windows);
  EXPECT_EQ(back.config.attention.dsa.reach, m.config.attention.dsa.reach);
  EXPECT_EQ(back.config.fps, 23.976);
  EXPECT_EQ(back.source.seed, m.source.seed);
}

}  // namespace
}  // namespace megaslide
