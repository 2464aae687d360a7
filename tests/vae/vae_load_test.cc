// Folders of autoencoders as they should not be: configs and weights that are damaged, odd or of something else.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "tests/vae/vae_files.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;
using namespace testing_support;
using nlohmann::json;

std::string config_error(const std::function<void(json&)>& change, const std::string& kind = "w21") {
  json j = read_json(vae_data(kind) + "/config.json");
  change(j);
  try {
    wan_vae_config(j, "config.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_FALSE(e.remedy().empty());
    return e.what();
  }
  return {};
}

TEST(VaeConfig, IsThatOfThePublishedModels) {
  const WanVaeConfig a = wan_vae_config(json::object(), "config.json");  // diffusers' defaults are those of 2.1
  EXPECT_EQ(wan_vae_tensors(a).size(), 194U);
  int64_t parameters = 0;
  for (const auto& [name, shape] : wan_vae_tensors(a)) parameters += element_count(shape);
  EXPECT_EQ(parameters, 126'892'531);
  EXPECT_EQ(a.spatial_stride(), 8);

  json j = read_json(vae_data("w22") + "/config.json");
  const WanVaeConfig tiny = wan_vae_config(j, "config.json");
  j["base_dim"] = 160;
  j["decoder_base_dim"] = 256;
  // The tables of the published weights stand in for a config that leaves them out.
  j.erase("latents_mean");
  j.erase("latents_std");
  const WanVaeConfig b = wan_vae_config(j, "config.json");
  EXPECT_EQ(b.latents_mean, tiny.latents_mean);
  EXPECT_EQ(b.latents_std, tiny.latents_std);
  EXPECT_EQ(a.latents_mean, wan_vae_config(read_json(vae_data("w21") + "/config.json"), "").latents_mean);
  EXPECT_EQ(a.latents_std, wan_vae_config(read_json(vae_data("w21") + "/config.json"), "").latents_std);
  EXPECT_EQ(wan_vae_tensors(b).size(), 196U);
  parameters = 0;
  for (const auto& [name, shape] : wan_vae_tensors(b)) parameters += element_count(shape);
  EXPECT_EQ(parameters, 704'688'668);
  EXPECT_EQ(b.spatial_stride(), 16);
  EXPECT_EQ(b.temporal_stride(), 4);
}

TEST(VaeConfig, KeysThatSayNothingOfShapesAreLeftAlone) {
  EXPECT_EQ(config_error([](json& j) {
              j["clip_output"] = false;
              j["_name_or_path"] = "somewhere";
              j["dropout"] = "much";
              j["patch_size"] = nullptr;
            }),
            "");
}

TEST(VaeConfig, OddValuesAreRefusedByName) {
  const auto expect = [](const char* part, const std::function<void(json&)>& change) {
    const std::string text = config_error(change);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect("base_dim", [](json& j) { j["base_dim"] = -8; });
  expect("base_dim", [](json& j) { j["base_dim"] = 1e18; });
  expect("base_dim", [](json& j) { j["base_dim"] = 18446744073709551615ULL; });
  expect("base_dim", [](json& j) { j["base_dim"] = "96"; });
  expect("base_dim", [](json& j) { j["base_dim"] = 9.5; });
  expect("z_dim", [](json& j) { j["z_dim"] = 0; });
  expect("channels", [](json& j) {
    j["base_dim"] = 4096;
    j["dim_mult"] = {1, 2, 4, 64};
  });
  expect("dim_mult", [](json& j) { j["dim_mult"] = json::array(); });
  expect("dim_mult", [](json& j) { j["dim_mult"] = {1, 2, -4, 4}; });
  expect("dim_mult", [](json& j) { j["dim_mult"] = std::vector<int>(1000, 1); });
  expect("temperal_downsample", [](json& j) { j["temperal_downsample"] = {true}; });
  expect("temperal_downsample", [](json& j) { j["temperal_downsample"] = {0, 1, 1}; });
  expect("num_res_blocks", [](json& j) { j["num_res_blocks"] = 1000000; });
  expect("is_residual", [](json& j) { j["is_residual"] = 1; });
  expect("in_channels", [](json& j) { j["in_channels"] = 4; });
  expect("in_channels", [](json& j) { j["patch_size"] = 2; });
  expect("attn_scales", [](json& j) { j["attn_scales"] = {0.5}; });
  expect("latents_mean", [](json& j) { j["latents_mean"] = {1, 2}; });
  expect("latents_std", [](json& j) { j["latents_std"][3] = 0; });
  expect("latents_mean", [](json& j) { j["latents_mean"][3] = nullptr; });
  expect("AutoencoderKLWan", [](json& j) { j["_class_name"] = "AutoencoderKL"; });
  expect("halved", [](json& j) {
    j["base_dim"] = 3;
    j["dim_mult"] = {1, 3, 4, 4};
  });
  expect("not an object", [](json& j) { j = json::array(); });
  // All at once.
  const std::string both = config_error([](json& j) {
    j["z_dim"] = -1;
    j["num_res_blocks"] = "two";
  });
  EXPECT_NE(both.find("z_dim"), std::string::npos);
  EXPECT_NE(both.find("num_res_blocks"), std::string::npos);
  const std::string unknown = config_error([](json& j) {
    j["z_dim"] = 20;
    j.erase("latents_mean");
    j.erase("latents_std");
  });
  EXPECT_NE(unknown.find("z_dim 20"), std::string::npos) << unknown;
}

// Loads `folder` once its tensors are those of w21 after `change`.
using Tensors = std::vector<std::pair<std::string, TensorView>>;
std::string load_error(const TemporaryFolder& folder, const std::function<void(Tensors&)>& change, const std::function<void(json&)>& config = {}) {
  json j = read_json(vae_data("w21") + "/config.json");
  if (config) config(j);
  folder.write("config.json", j.dump());
  const SafetensorsFile file = SafetensorsFile::open(vae_data("w21") + "/diffusion_pytorch_model.safetensors");
  Tensors tensors;
  for (const TensorInfo& info : file.tensors()) tensors.emplace_back(info.name, file.view(info));
  change(tensors);
  write_safetensors(folder / "diffusion_pytorch_model.safetensors", tensors);
  try {
    const WanVae vae(folder.path(), "test");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage) << e.what();
    EXPECT_FALSE(e.remedy().empty());
    return e.what();
  }
  return {};
}

auto find(Tensors& t, const std::string& name) {
  return std::find_if(t.begin(), t.end(), [&](const auto& e) { return e.first == name; });
}

TEST(VaeLoad, AllThatIsWrongWithTheTensorsIsListed) {
  const TemporaryFolder folder;
  EXPECT_EQ(load_error(folder, [](Tensors&) {}), "");
  const std::vector<std::byte> zeros(4096);
  const std::string text = load_error(folder, [&](Tensors& t) {
    t.erase(find(t, "encoder.conv_in.weight"));
    find(t, "decoder.conv_in.bias")->second.shape = {4, 8};
    find(t, "quant_conv.bias")->second = {DType::kI64, {32}, zeros.data()};
    t.emplace_back("encoder.time_embedding.weight", TensorView{DType::kF32, {4}, zeros.data()});
  });
  for (const char* part :
       {"4 of 194", "encoder.conv_in.weight: missing", "decoder.conv_in.bias: [4, 8], the config says [32]",
        "quant_conv.bias: I64", "encoder.time_embedding.weight: not part"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

// What the config asks for is compared with the file before anything is allocated.
TEST(VaeLoad, AConfigOfAnotherSizeIsRefusedShortly) {
  const std::string text = load_error(TemporaryFolder(), [](Tensors&) {}, [](json& j) { j["base_dim"] = 4000; });
  EXPECT_NE(text.find("the config says"), std::string::npos);
  EXPECT_NE(text.find("more"), std::string::npos);
  EXPECT_LT(text.size(), 4000U);
}

TEST(VaeLoad, EmptyAndDamagedFoldersAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THROW(WanVae(folder.path(), "test"), Error);
  folder.write("config.json", "{\"z_dim\": 16");
  EXPECT_THROW(WanVae(folder.path(), "test"), Error);
  folder.write("config.json", "{}");
  EXPECT_THROW(WanVae(folder.path(), "test"), Error);
  folder.write("diffusion_pytorch_model.safetensors", "PK");
  EXPECT_THROW(WanVae(folder.path(), "test"), Error);
}

// BF16 weights are those that bf16 rounding gives.
TEST(VaeLoad, WeightsMayBeBf16) {
  const SafetensorsFile file = SafetensorsFile::open(vae_data("w21") + "/diffusion_pytorch_model.safetensors");
  std::vector<HostTensor> kept;
  const TemporaryFolder folder;
  const std::string text = load_error(folder, [&](Tensors& t) {
    for (auto& [name, view] : t) {
      const HostTensor wide = HostTensor::f32_from(view);
      kept.emplace_back(DType::kBF16, view.shape);
      convert_from_f32(kept.back().data(), DType::kBF16, wide.f32(), wide.elements());
      view = kept.back().view();
    }
  });
  EXPECT_EQ(text, "");
  ThreadPool pool(2);
  const HostTensor latent = random_tensor({16, 1, 2, 2}, 1);
  const WanVae rounded(folder.path(), "test"), exact(vae_data("w21"), "test");
  const double d = distance(rounded.decode(pool, latent.view()), exact.decode(pool, latent.view()));
  EXPECT_GT(d, 1e-5);
  EXPECT_LT(d, 0.02);
}

}  // namespace
}  // namespace megaslide
