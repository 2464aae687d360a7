// The whole reference data as checkpoints: every layout of it gives the same state, and goes out as it came in.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/atomic_file.h"
#include "io/part_names.h"
#include "io/shard.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {
namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

class WholeGoldenCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("MEGASLIDE_GOLDEN");
    if (!folder) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
    golden_ = std::string(folder) + "/wan";
  }
  ModelDirectory import(const std::string& source) {
    import_checkpoint(source, folder_ / "m", {.replace = true});
    return ModelDirectory::open(folder_ / "m");
  }
  // The converted part holds the reference's values, whatever type they are stored as.
  void expect_values(const PartCheckpoint& part, const TensorSource& original, const std::string& converted) {
    const TensorSource expected = TensorSource::open(converted);
    ASSERT_EQ(part.tensors.size(), expected.tensors().size());
    for (const PartTensor& t : part.tensors) {
      SCOPED_TRACE(t.name);
      ASSERT_TRUE(expected.find(t.name));
      const HostTensor a = HostTensor::f32_from(original.read(part.source.at(t.name)).view()), b = HostTensor::f32_from(expected.read(t.name).view());
      ASSERT_EQ(a.shape(), b.shape());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())), 0);
    }
  }
  TemporaryFolder folder_;
  std::string golden_;
};

TEST_F(WholeGoldenCheckpoints, EveryLayoutOfANetworkIsOneState) {
  for (const std::vector<std::string>& same : {std::vector<std::string>{"/dit/a/diffusers", "/dit/a/sharded", "/dit/a/orig", "/dit/a/orig/orig.safetensors"},
                                              std::vector<std::string>{"/dit/b/diffusers", "/dit/b/orig"}}) {
    std::set<std::string> hashes;
    for (const std::string& source : same) hashes.insert(hash_state(import(golden_ + source)));
    EXPECT_EQ(hashes.size(), 1u) << same[0];
  }
  EXPECT_EQ(import(golden_ + "/train/init").manifest().parameters, 27944);
}

TEST_F(WholeGoldenCheckpoints, APipelineGoesOutByteByByte) {
  const ModelDirectory model = import(golden_ + "/pipeline/model");
  EXPECT_EQ(model.config().flow_shift, 3);
  export_checkpoint(model, folder_ / "out", {});
  size_t files = 0;
  for (const auto& e : fs::recursive_directory_iterator(golden_ + "/pipeline/model")) {
    if (!e.is_regular_file()) continue;
    const std::string name = fs::relative(e.path(), golden_ + "/pipeline/model").string();
    EXPECT_EQ(read_file(e.path().string()), read_file(folder_ / "out" + "/" + name)) << name;
    ++files;
  }
  EXPECT_EQ(files, 11u);
}

TEST_F(WholeGoldenCheckpoints, PartsUnderTheirOriginalNames) {
  for (const char* vae : {"w21", "w22"}) {
    const TensorSource source = TensorSource::open(golden_ + "/vae/" + vae + "/orig.safetensors");
    expect_values(identify_vae(source, ""), source, golden_ + "/vae/" + vae + "/diffusers");
  }
  const TensorSource source = TensorSource::open(golden_ + "/umt5/orig.safetensors");
  expect_values(identify_umt5(source, ""), source, golden_ + "/umt5/hf");
}

}  // namespace
}  // namespace megaslide
