// Whole checkpoints in and out: parts in every layout, FP8, two networks, damaged weights (libcore/io/shard.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "io/json.h"
#include "io/open_model.h"
#include "io/part_names.h"
#include "io/shard.h"
#include "io/wan_variants.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/error_text.h"
#include "torch_archive.h"

namespace megaslide {
namespace {
namespace fs = std::filesystem;

using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

const std::string kData = MEGASLIDE_TEST_DATA;

struct Tensors : std::map<std::string, HostTensor> {
  Tensors() = default;
  explicit Tensors(const std::string& path) {
    const TensorSource source = TensorSource::open(path);
    for (const auto& [name, e] : source.tensors()) emplace(name, source.read(name));
  }
  std::map<std::string, TensorView> views() const {
    std::map<std::string, TensorView> out;
    for (const auto& [name, t] : *this) out[name] = t.view();
    return out;
  }
  void save(const std::string& path) const {
    const auto v = views();
    write_safetensors(path, {v.begin(), v.end()});
  }
  void put(const std::string& name, DType dtype, Shape shape, const std::function<double(int64_t)>& value) {
    HostTensor full(DType::kF32, shape);
    for (int64_t i = 0; i < full.elements(); ++i) full.f32()[i] = static_cast<float>(value(i));
    HostTensor out(dtype, std::move(shape));
    convert_from_f32(out.data(), dtype, full.f32(), full.elements());
    insert_or_assign(name, std::move(out));
  }
};

void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, t] : a) {
    ASSERT_TRUE(b.count(name)) << name;
    const HostTensor& u = b.at(name);
    ASSERT_EQ(t.dtype(), u.dtype()) << name;
    ASSERT_EQ(t.shape(), u.shape()) << name;
    EXPECT_TRUE(std::equal(t.data(), t.data() + t.bytes(), u.data())) << name;
  }
}

// Names of Wan's own files → those of the converted ones, as found by content in files made with other people's libraries.
std::map<std::string, std::string> original_names(const std::string& part) {
  std::map<std::string, std::string> out;
  const nlohmann::json names = read_json(kData + "/checkpoints/names.json");
  for (const auto& row : names.at(part)) out[row[1]] = row[0];
  return out;
}

Tensors renamed(const Tensors& from, const std::map<std::string, std::string>& names, const std::string& prefix = {}) {
  Tensors out;
  for (const auto& [name, t] : from) out.emplace(prefix + names.at(name), t.clone());
  return out;
}

class ImportTest : public testing::Test {
 protected:
  ImportTest() {
    previous_ = set_log_sink([this](LogLevel level, const std::string& text) {
      if (level == LogLevel::kWarning) warnings_ += text + "\n";
    });
  }
  ~ImportTest() override { set_log_sink(previous_); }

  ModelDirectory import(const std::string& source, const std::string& name, ImportOptions options = {}) {
    options.replace = true;
    warnings_.clear();
    import_checkpoint(source, folder_ / name, options);
    ModelDirectory model = ModelDirectory::open(folder_ / name);
    EXPECT_TRUE(model.verify(pool_).empty());
    return model;
  }
  std::string refused(const std::string& source, ImportOptions options = {}) {
    const std::string message = error_of([&] { import_checkpoint(source, folder_ / "refused", options); });
    EXPECT_FALSE(fs::exists(folder_ / "refused"));
    EXPECT_FALSE(fs::exists(folder_ / "refused.tmp"));
    return message;
  }
  // Wan's own folder of a tiny model: network, VAE and text encoder with original names, the latter two as archives.
  std::string original_folder() {
    const std::string at = folder_ / "Wan2.1-T2V-tiny";
    fs::create_directories(at + "/google/umt5-xxl");
    Tensors network(kData + "/wan/dit/a/orig");
    network.put("text_embedding.0.weight", DType::kF32, {24, 64}, [](int64_t i) { return std::sin(static_cast<double>(i)); });
    network.save(at + "/diffusion_pytorch_model.safetensors");
    std::string config = read_file(kData + "/wan/dit/a/orig/config.json");
    config.replace(config.find("\"text_dim\": 16"), 14, "\"text_dim\": 64");
    std::ofstream(at + "/config.json") << config;
    vae_ = Tensors(kData + "/vae/w21");
    text_encoder_ = Tensors(kData + "/umt5/text_encoder");
    write_torch(at + "/Wan2.1_VAE.pth", renamed(vae_, original_names("vae-2.1")).views());
    write_torch(at + "/models_t5_umt5-xxl-enc-bf16.pth", renamed(text_encoder_, original_names("umt5")).views());
    fs::copy(kData + "/umt5/tokenizer", at + "/google/umt5-xxl", fs::copy_options::recursive);
    return at;
  }

  TemporaryFolder folder_;
  ThreadPool pool_{2};
  std::string warnings_;
  Tensors vae_, text_encoder_;

 private:
  LogSink previous_;
};

TEST_F(ImportTest, TorchArchivesGiveTheSameState) {
  const std::string expected = hash_state(import(kData + "/wan/dit/a/diffusers", "a"));
  fs::copy(kData + "/wan/dit/a/orig/config.json", folder_ / "config.json");
  fs::copy(kData + "/checkpoints/torch/model.pth", folder_ / "model.pth");
  EXPECT_EQ(hash_state(import(folder_ / "model.pth", "b")), expected);
  // Nested and with a prefix, as training programs save it.
  const Tensors tensors(folder_ / "model.pth");
  Tensors prefixed;
  for (const auto& [name, t] : tensors) prefixed.emplace("module." + name, t.clone());
  write_torch(folder_ / "prefixed.pt", prefixed.views());
  EXPECT_EQ(hash_state(import(folder_ / "prefixed.pt", "c")), expected);
}

TEST_F(ImportTest, TheOriginalFolderBecomesAPipeline) {
  const ModelDirectory model = import(original_folder(), "m");
  EXPECT_EQ(model.config().codec, CodecKind::kWan21Vae);
  EXPECT_EQ(model.config().text_encoder, TextEncoderKind::kUmt5);
  EXPECT_EQ(model.parts_folder(), model.path());
  expect_same(vae_, Tensors(folder_ / "m/vae"));
  expect_same(text_encoder_, Tensors(folder_ / "m/text_encoder"));
  EXPECT_EQ(read_file(folder_ / "m/tokenizer/spiece.model"), read_file(kData + "/umt5/tokenizer/spiece.model"));
  // The configs that were made say what the libraries' own say.
  const auto compare = [&](const std::string& made, const std::string& theirs, const std::vector<std::string>& keys) {
    const nlohmann::json a = read_json(made), b = read_json(theirs);
    for (const std::string& key : keys) EXPECT_EQ(a.at(key), b.at(key)) << key;
  };
  compare(folder_ / "m/vae/config.json", kData + "/vae/w21/config.json",
          {"_class_name", "attn_scales", "base_dim", "decoder_base_dim", "dim_mult", "dropout", "in_channels", "is_residual", "latents_mean", "latents_std",
           "num_res_blocks", "out_channels", "patch_size", "scale_factor_spatial", "scale_factor_temporal", "temperal_downsample", "z_dim"});
  compare(folder_ / "m/text_encoder/config.json", kData + "/umt5/text_encoder/config.json",
          {"d_ff", "d_kv", "d_model", "dense_act_fn", "feed_forward_proj", "is_gated_act", "layer_norm_epsilon", "num_heads", "num_layers", "pad_token_id",
           "relative_attention_max_distance", "relative_attention_num_buckets", "vocab_size", "model_type"});
  const nlohmann::json index = read_json(folder_ / "m/model_index.json");
  EXPECT_EQ(index.at("_class_name"), "WanPipeline");
  EXPECT_EQ(index.at("transformer_2"), (nlohmann::json{nullptr, nullptr}));
  EXPECT_EQ(read_json(folder_ / "m/scheduler/scheduler_config.json").at("flow_shift"), model.config().flow_shift);
  const ModelSummary s = describe(model);
  EXPECT_EQ(s.parts, (std::vector<std::string>{"vae", "text_encoder", "tokenizer"}));
  EXPECT_EQ(s.parameters, parameter_count(model.config()));
}

TEST_F(ImportTest, PipelinesGoOutAndComeBack) {
  const ModelDirectory model = import(original_folder(), "m");
  const auto files = export_checkpoint(model, folder_ / "diffusers", {.replace = true});
  for (const char* name : {"model_index.json", "scheduler/scheduler_config.json", "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors",
                           "vae/config.json", "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors", "tokenizer/spiece.model"}) {
    EXPECT_TRUE(fs::exists(folder_ / "diffusers" + "/" + name)) << name;
    EXPECT_TRUE(std::find(files.begin(), files.end(), folder_ / "diffusers" + "/" + name) != files.end()) << name;
  }
  export_checkpoint(model, folder_ / "wan", {.layout = WanLayout::kOriginal, .replace = true});
  expect_same(renamed(vae_, original_names("vae-2.1")), Tensors(folder_ / "wan/Wan2.1_VAE.safetensors"));
  expect_same(renamed(text_encoder_, original_names("umt5")), Tensors(folder_ / "wan/models_t5_umt5-xxl-enc-fp32.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "wan/google/umt5-xxl/spiece.model"));
  for (const char* source : {"diffusers", "diffusers/transformer", "wan"}) {
    SCOPED_TRACE(source);
    const ModelDirectory again = import(folder_ / source, "again");
    EXPECT_EQ(warnings_, "");
    EXPECT_EQ(hash_state(again), hash_state(model));
    EXPECT_EQ(again.config().codec, model.config().codec);
    EXPECT_EQ(again.config().text_encoder, model.config().text_encoder);
    // Byte by byte, so that what was encoded with one is known to belong to the other.
    for (const char* file : {"vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"})
      EXPECT_EQ(read_file(again.component(file)), read_file(model.component(file))) << file;
  }
  // A folder of an export is replaced when asked.
  EXPECT_NO_THROW(export_checkpoint(model, folder_ / "diffusers", {.replace = true}));
  EXPECT_NO_THROW(export_checkpoint(model, folder_ / "wan", {.layout = WanLayout::kOriginal, .replace = true}));
}

TEST_F(ImportTest, Vae22ByItsNames) {
  vae_ = Tensors(kData + "/vae/w22");
  const Tensors original = renamed(vae_, original_names("vae-2.2"));
  write_torch(folder_ / "Wan2.2_VAE.pth", original.views());
  const TensorSource source = TensorSource::open(folder_ / "Wan2.2_VAE.pth");
  const PartCheckpoint part = identify_vae(source, "");
  EXPECT_EQ(part.codec, CodecKind::kWan22Vae);
  EXPECT_EQ(part.width, 48);
  for (const PartTensor& t : part.tensors) EXPECT_EQ(original_names("vae-2.2").at(t.name), t.original);
  nlohmann::json made = parse_json(part.config_json, "made"), theirs = read_json(kData + "/vae/w22/config.json");
  made.erase("_diffusers_version");
  theirs.erase("_diffusers_version");
  EXPECT_EQ(made, theirs);
  // The published sizes: spec wan.md C.1 and C.7.
  const auto count = [](const VaeShape& s) {
    int64_t n = 0;
    for (const PartTensor& t : vae_tensors(s)) n += element_count(t.shape);
    return std::pair(static_cast<int64_t>(vae_tensors(s).size()), n);
  };
  EXPECT_EQ(count({.residual = false, .base_dim = 96, .decoder_base_dim = 96, .z_dim = 16}), std::pair(int64_t{194}, int64_t{126'892'531}));
  EXPECT_EQ(count({.residual = true, .base_dim = 160, .decoder_base_dim = 256, .z_dim = 48, .in_channels = 12, .out_channels = 12}),
            std::pair(int64_t{196}, int64_t{704'688'668}));
  int64_t n = 0;
  const auto umt5 = umt5_tensors({.vocab_size = 256384, .d_model = 4096, .heads = 64, .d_kv = 64, .d_ff = 10240, .layers = 24});
  for (const PartTensor& t : umt5) n += element_count(t.shape);
  EXPECT_EQ(umt5.size(), 242u);
  EXPECT_EQ(n, 5'680'910'336);
}

TEST_F(ImportTest, PartsByFlagsAndPartsThatDoNotFit) {
  const std::string folder = original_folder();
  fs::create_directories(folder_ / "models");
  fs::copy(folder + "/diffusion_pytorch_model.safetensors", folder_ / "models/wan_bf16.safetensors");
  fs::copy(folder + "/config.json", folder_ / "models/config.json");
  EXPECT_EQ(import(folder_ / "models/wan_bf16.safetensors", "bare").config().codec, CodecKind::kNone);
  // A repack of the text encoder that carries its tokenizer.
  Tensors repack = Tensors(kData + "/umt5/text_encoder");
  const std::string spiece = read_file(kData + "/umt5/tokenizer/spiece.model");
  HostTensor bytes(DType::kU8, {static_cast<int64_t>(spiece.size())});
  std::memcpy(bytes.data(), spiece.data(), spiece.size());
  repack.emplace("spiece_model", std::move(bytes));
  repack.save(folder_ / "umt5_repack.safetensors");
  const ModelDirectory model = import(folder_ / "models/wan_bf16.safetensors", "m", {.parts = {folder + "/Wan2.1_VAE.pth", folder_ / "umt5_repack.safetensors", ""}});
  EXPECT_EQ(model.config().codec, CodecKind::kWan21Vae);
  EXPECT_EQ(model.config().text_encoder, TextEncoderKind::kUmt5);
  EXPECT_EQ(read_file(model.component("tokenizer/spiece.model")), spiece);
  expect_same(text_encoder_, Tensors(folder_ / "m/text_encoder"));
  // Without a tokenizer there is no text encoder to speak of.
  EXPECT_EQ(import(folder_ / "models/wan_bf16.safetensors", "n", {.parts = {"", folder + "/models_t5_umt5-xxl-enc-bf16.pth", ""}}).config().text_encoder,
            TextEncoderKind::kNone);
  expect_contains(warnings_, "import again with --tokenizer DIR");
  const auto with = [&](PartFlags parts) { return refused(folder_ / "models/wan_bf16.safetensors", {.parts = std::move(parts)}); };
  expect_contains(with({kData + "/vae/w22", "", ""}), "48 latent channels, but the transformer has 16");
  expect_contains(with({folder_ / "umt5_repack.safetensors", "", ""}), "not a Wan VAE");
  expect_contains(with({"", folder + "/Wan2.1_VAE.pth", ""}), "not a UMT5 text encoder");
  expect_contains(with({"", "", folder_ / "models"}), "no spiece.model");
  expect_contains(with({folder_ / "none", "", ""}), "--vae");
  // A part given as the model: what it is, and where it belongs.
  expect_contains(refused(folder + "/Wan2.1_VAE.pth"), "a video autoencoder (VAE)");
  expect_contains(refused(folder + "/Wan2.1_VAE.pth"), "--vae FILE");
  expect_contains(refused(folder_ / "umt5_repack.safetensors"), "--text-encoder FILE");
  // Found by its name only, a part that doesn't fit stays behind.
  Tensors wide(folder + "/diffusion_pytorch_model.safetensors");
  write_torch(folder + "/Wan2.1_VAE.pth", renamed(Tensors(kData + "/vae/w22"), original_names("vae-2.2")).views());
  EXPECT_EQ(import(folder, "k").config().codec, CodecKind::kNone);
  expect_contains(warnings_, "not taken along");
  // Damage inside a part is listed as for the network.
  Tensors damaged(kData + "/umt5/text_encoder");
  damaged.erase("encoder.block.1.layer.0.layer_norm.weight");
  damaged.put("encoder.block.0.layer.1.DenseReluDense.wo.weight", DType::kF32, {3}, [](int64_t) { return 0; });
  damaged.save(folder_ / "damaged.safetensors");
  const std::string message = with({"", folder_ / "damaged.safetensors", ""});
  expect_contains(message, "missing: encoder.block.1.layer.0.layer_norm.weight [64]");
  expect_contains(message, "wrong shape: encoder.block.0.layer.1.DenseReluDense.wo.weight is [3]");
}

// A scaled copy in FP8 of some of the network's weights.
TEST_F(ImportTest, Fp8NeedsItsScalesAndPermission) {
  const Tensors plain(kData + "/wan/dit/a/orig");
  const std::string q = "blocks.0.self_attn.q.weight", k = "blocks.0.self_attn.k.weight", o = "blocks.1.ffn.0.weight";
  const auto make = [&](const std::string& q_scale, const std::string& k_scale, const std::string& o_scale) {
    Tensors t;
    for (const auto& [name, v] : plain) t.emplace(name, v.clone());
    for (const std::string& name : {q, k, o}) {
      HostTensor eight(name == k ? DType::kF8_E5M2 : DType::kF8_E4M3, t.at(name).shape());
      for (int64_t i = 0; i < eight.elements(); ++i) eight.data()[i] = static_cast<std::byte>(i * 37 % 120);
      t.insert_or_assign(name, std::move(eight));
    }
    if (!q_scale.empty()) t.put(q_scale, DType::kF32, {}, [](int64_t) { return 0.0131; });
    if (!k_scale.empty()) t.put(k_scale, DType::kF32, {24}, [](int64_t i) { return 0.001 * static_cast<double>(i + 1); });
    if (!o_scale.empty()) t.put(o_scale, DType::kBF16, {32, 1}, [](int64_t i) { return 0.5 + static_cast<double>(i); });
    t.put("blocks.0.self_attn.q.scale_input", DType::kF32, {1}, [](int64_t) { return 7; });
    t.emplace("scaled_fp8", HostTensor(DType::kF8_E4M3, {2}));
    fs::create_directories(folder_ / "f");
    t.save(folder_ / "f/w.safetensors");
    fs::copy_file(kData + "/wan/dit/a/orig/config.json", folder_ / "f/config.json", fs::copy_options::overwrite_existing);
    return t;
  };
  const Tensors t = make("blocks.0.self_attn.q.scale_weight", "blocks.0.self_attn.k.weight_scale", "blocks.1.ffn.0.weight_scale");
  const std::string message = refused(folder_ / "f/w.safetensors");
  expect_contains(message, "fp8 weights with scales (3 tensors)");
  expect_contains(message, "give the bf16 or fp32 checkpoint, or allow de-quantising with --dtype bf16");
  for (const StoreDtype dtype : {StoreDtype::kFp32, StoreDtype::kBf16}) {
    import(folder_ / "f/w.safetensors", "m", {.dtype = dtype});
    expect_contains(warnings_, "training starts from quantised weights");
    export_checkpoint(ModelDirectory::open(folder_ / "m"), folder_ / "out.safetensors", {.layout = WanLayout::kOriginal, .replace = true});
    const SafetensorsFile out = SafetensorsFile::open(folder_ / "out.safetensors");
    for (const std::string& name : {q, k, o}) {
      const HostTensor got = HostTensor::f32_from(out.view(name));
      for (int64_t i = 0; i < got.elements(); ++i) {
        const auto bits = static_cast<uint8_t>(t.at(name).data()[i]);
        const int64_t row = i / 24;
        const float scale = name == q   ? 0.0131f
                            : name == k ? static_cast<float>(0.001 * static_cast<double>(row + 1))
                                        : to_float(to_bf16(0.5f + static_cast<float>(row)));
        const float exact = (name == k ? f8_e5m2_to_float(bits) : f8_e4m3_to_float(bits)) * scale;
        ASSERT_EQ(got.f32()[i], dtype == StoreDtype::kFp32 ? exact : to_float(to_bf16(exact))) << name << " " << i;
      }
    }
    EXPECT_EQ(out.tensors().size(), plain.size());
  }
  // The other names of a scale; without one the numbers mean nothing.
  make("blocks.0.self_attn.q.weight_scale_inv", k + "_scale", o + "_scale");
  EXPECT_NO_THROW(import(folder_ / "f/w.safetensors", "m", {.dtype = StoreDtype::kBf16}));
  make("", k + "_scale", o + "_scale");
  expect_contains(refused(folder_ / "f/w.safetensors", {.dtype = StoreDtype::kBf16}), "\"blocks.0.self_attn.q.weight\" is F8_E4M3 without a scale");
  make("blocks.0.self_attn.q.scale_weight", o + "_scale", "");
  expect_contains(refused(folder_ / "f/w.safetensors", {.dtype = StoreDtype::kBf16}), "\"blocks.0.self_attn.k.weight\" is F8_E5M2 without a scale");
  Tensors wrong = make("blocks.0.self_attn.q.scale_weight", k + "_scale", o + "_scale");
  wrong.put(o + "_scale", DType::kF32, {5}, [](int64_t) { return 1; });
  wrong.save(folder_ / "f/w.safetensors");
  expect_contains(refused(folder_ / "f/w.safetensors", {.dtype = StoreDtype::kBf16}), "one value, or one a row");
}

TEST_F(ImportTest, TwoNetworks) {
  // A pipeline of two, the second with other values.
  const std::string pipeline = folder_ / "pipeline";
  fs::create_directories(pipeline + "/transformer_2");
  fs::copy(kData + "/wan/dit/a/diffusers", pipeline + "/transformer");
  Tensors second(kData + "/wan/dit/a/diffusers");
  second.put("proj_out.bias", DType::kF32, {64}, [](int64_t i) { return static_cast<double>(i); });
  second.save(pipeline + "/transformer_2/diffusion_pytorch_model.safetensors");
  fs::copy(kData + "/wan/dit/a/diffusers/config.json", pipeline + "/transformer_2/config.json");
  std::ofstream(pipeline + "/model_index.json") << "{\"boundary_ratio\": 0.85}";
  const ModelDirectory model = import(pipeline, "m");
  ASSERT_TRUE(model.has_second());
  EXPECT_EQ(model.parts_folder(), model.path());
  EXPECT_EQ(model.config().boundary, 0.85);
  EXPECT_EQ(model.config().guidance_scale, 4);
  EXPECT_EQ(model.config().guidance_scale_2, 3);
  EXPECT_EQ(model.config().steps, 40);
  EXPECT_EQ(model.config().flow_shift, 12);
  EXPECT_EQ(model.second().config().boundary, 0);
  EXPECT_EQ(model.second().config().guidance_scale, 3);
  const ModelSummary s = describe(model);
  ASSERT_EQ(s.networks.size(), 2u);
  EXPECT_EQ(s.parameters, 2 * 27944);
  EXPECT_EQ(s.tensors.size(), 138u);
  EXPECT_NE(hash_state(model), hash_state(model.second()));
  EXPECT_NE(hash_model(model).text, hash_state(model) + "\n");
  // Out in both layouts, and back.
  for (const WanLayout layout : {WanLayout::kDiffusers, WanLayout::kOriginal}) {
    const std::string out = folder_ / wan_layout_name(layout);
    export_checkpoint(model, out, {.layout = layout});
    EXPECT_TRUE(fs::exists(out + (layout == WanLayout::kDiffusers ? "/transformer_2" : "/low_noise_model") + "/config.json"));
    const ModelDirectory again = import(out, "again");
    EXPECT_EQ(hash_model(again).text, hash_model(model).text);
    EXPECT_EQ(hash_state(again), hash_state(model));
    EXPECT_EQ(again.config().boundary, layout == WanLayout::kDiffusers ? 0.85 : 0.875);
  }
  expect_contains(error_of([&] { export_checkpoint(model, folder_ / "x.safetensors", {}); }), "two networks");
  // One alone by its own folder; one of two that is gone; two that don't belong together.
  EXPECT_EQ(hash_state(import(folder_ / "wan/low_noise_model", "low")), hash_state(model.second()));
  fs::remove_all(folder_ / "wan/high_noise_model");
  expect_contains(refused(folder_ / "wan"), "is missing: high_noise_model");
  fs::copy(kData + "/dit/b", folder_ / "wan/high_noise_model");
  for (const char* extra : {"grads-every-16th-row.safetensors", "io.safetensors", "meta.json"}) fs::remove(folder_ / "wan/high_noise_model" + "/" + extra);
  expect_contains(refused(folder_ / "wan"), "two networks of different sizes");
  // A bit of the second network that changed is found.
  const std::string file = model.path() + "/transformer_2/head.safetensors";
  std::string bytes = read_file(file);
  bytes.back() ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  const auto differences = model.verify(pool_);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].name, "transformer_2/head.safetensors");
}

TEST_F(ImportTest, VariantsAreNamed) {
  const auto with = [&](const std::string& tensor) {
    Tensors t(kData + "/wan/dit/a/diffusers");
    t.put(tensor, DType::kF32, {4}, [](int64_t) { return 1; });
    t.save(folder_ / "v.safetensors");
    return refused(folder_ / "v.safetensors");
  };
  expect_contains(with("condition_embedder.image_embedder.norm1.weight"), "a Wan 2.1 image-to-video model");
  expect_contains(with("condition_embedder.image_embedder.pos_embed"), "first-and-last-frame model (FLF2V)");
  expect_contains(with("vace_blocks.0.proj_in.weight"), "VACE");
  expect_contains(with("control_adapter.conv.weight"), "control inputs");
  // Wan 2.2 image-to-video: 36 channels in and no other parts. Stored and exported.
  Tensors t(kData + "/wan/dit/a/orig");
  t.put("patch_embedding.weight", DType::kF32, {24, 36, 1, 2, 2}, [](int64_t i) { return static_cast<double>(i % 7); });
  fs::create_directories(folder_ / "i2v");
  t.save(folder_ / "i2v/w.safetensors");
  std::string config = read_file(kData + "/wan/dit/a/orig/config.json");
  config.replace(config.find("\"in_dim\": 16"), 12, "\"in_dim\": 36");
  std::ofstream(folder_ / "i2v/config.json") << config;
  const ModelDirectory model = import(folder_ / "i2v", "m");
  expect_contains(warnings_, "an image-to-video network (36 channels in, 16 out)");
  EXPECT_EQ(model.config().in_channels, 36);
  for (const char* argument : {"m", "i2v"})
    expect_contains(error_of([&] { OpenModel(folder_ / argument); }), "an image-to-video network (36 channels in, 16 out), whose image input is not supported");
  export_checkpoint(model, folder_ / "out.safetensors", {.layout = WanLayout::kOriginal});
  expect_same(t, Tensors(folder_ / "out.safetensors"));
}

TEST_F(ImportTest, ConfigsOfTheWrongTypeAreRefused) {
  const std::string config = read_file(kData + "/wan/dit/a/diffusers/config.json");
  fs::create_directories(folder_ / "c");
  fs::copy_file(kData + "/wan/dit/a/diffusers/diffusion_pytorch_model.safetensors", folder_ / "c/w.safetensors");
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = parse_json(config, "config.json");
    changed[key] = value;
    std::ofstream(folder_ / "c/config.json") << changed;
    return refused(folder_ / "c");
  };
  expect_contains(with("eps", "1e-6"), "config.json: eps must be a number, found \"1e-6\"");
  expect_contains(with("ffn_dim", "64"), "config.json: ffn_dim must be an integer, found \"64\"");
  expect_contains(with("freq_dim", -2), "config.json: freq_dim is -2, unusable");
}

TEST_F(ImportTest, ValuesThatAreNoNumbersAreNamed) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Tensors t(kData + "/wan/dit/a/diffusers");
    const Shape shape = t.at("blocks.1.ffn.net.0.proj.weight").shape();
    t.put("blocks.1.ffn.net.0.proj.weight", dtype, shape, [](int64_t i) { return i == 37 ? NAN : i == 38 || i == 700 ? -INFINITY : 1e-4 * static_cast<double>(i); });
    fs::create_directories(folder_ / "n");
    t.save(folder_ / "n/w.safetensors");
    fs::copy_file(kData + "/wan/dit/a/diffusers/config.json", folder_ / "n/config.json", fs::copy_options::overwrite_existing);
    import(folder_ / "n", "m");
    expect_contains(warnings_, "blocks.1.ffn.net.0.proj.weight: 1 NaN and 2 infinities, the first at index 37");
  }
  import(kData + "/wan/dit/a/diffusers", "m");
  EXPECT_EQ(warnings_, "");
}

TEST_F(ImportTest, AttentionOfAnotherModel) {
  const std::string source = kData + "/wan/dit/a/diffusers";
  ModelConfig like = import(source, "plain").config();
  like.name = "windows";
  like.attention.per_layer.assign(static_cast<size_t>(like.layers), AttentionKind::kDsa);
  like.attention.per_layer.front() = AttentionKind::kWindow;
  like.attention.dsa.motion_share = 0.5;
  like.attention.dsa.windows = {{.heads = 1, .kernel = std::array<int64_t, 3>{5, 1, 1}, .mode = DsaMode::kSlice}, {.kernel = std::array<int64_t, 3>{1, 5, 5}}};
  const ModelDirectory model = import(source, "m", {.attention_of = like});
  EXPECT_EQ(model.config().attention.per_layer, like.attention.per_layer);
  EXPECT_EQ(model.config().attention.dsa.windows, like.attention.dsa.windows);
  EXPECT_EQ(model.config().attention.dsa.motion_share, 0);  // step 0 is that of the neighbourhood
  EXPECT_EQ(model.manifest().parameters, parameter_count(model.config()));
  EXPECT_EQ(model.layer(1).view("blocks.1.attn1.offset_net.linear.bias").shape[0], model.config().attention.dsa.layer(1, like.heads).offset_outputs());
  like.heads = 4;
  expect_contains(refused(source, {.attention_of = like}), "the attention of windows is for");
}

TEST_F(ImportTest, DefaultsOfThePublishedModels) {
  const auto defaults = [](int64_t dim, int64_t layers, int64_t ffn, int64_t in, int64_t out, bool two) {
    ModelConfig c;
    c.dim = dim;
    c.layers = layers;
    c.ffn_dim = ffn;
    c.in_channels = in;
    c.out_channels = out;
    apply_wan_defaults(c, two);
    return c;
  };
  const ModelConfig small = defaults(1536, 30, 8960, 16, 16, false), large = defaults(5120, 40, 13824, 16, 16, false), pair = defaults(5120, 40, 13824, 16, 16, true),
                    image = defaults(5120, 40, 13824, 36, 16, true), five = defaults(3072, 30, 14336, 48, 48, false);
  EXPECT_EQ(small.name, "wan2.1-t2v-1.3b");
  EXPECT_EQ(large.name, "wan2.1-t2v-14b");
  EXPECT_EQ(large.height, 720);
  EXPECT_EQ(pair.name, "wan2.2-t2v-a14b");
  EXPECT_EQ(std::tuple(pair.boundary, pair.guidance_scale, pair.guidance_scale_2, pair.steps, pair.flow_shift), std::tuple(0.875, 4.0, 3.0, 40, 12.0));
  EXPECT_EQ(image.name, "wan2.2-i2v-a14b");
  EXPECT_EQ(std::tuple(image.boundary, image.guidance_scale, image.guidance_scale_2, image.flow_shift), std::tuple(0.9, 3.5, 3.5, 5.0));
  EXPECT_EQ(five.name, "wan2.2-ti2v-5b");
  EXPECT_EQ(std::tuple(five.num_frames, five.fps, five.height, five.width, five.flow_shift, five.steps), std::tuple(121, 24.0, 704, 1280, 5.0, 50));
}

}  // namespace
}  // namespace megaslide
