// Import, export, verification and hashing of model directories (libcore/io/shard.h).
#include "io/shard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "io/state_hash.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/error_text.h"

namespace megaslide {
namespace {
namespace fs = std::filesystem;

using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

const std::string kData = MEGASLIDE_TEST_DATA "/wan/dit/a";

// Same names, types, shapes and bytes.
void expect_same_tensors(const std::string& a, const std::string& b) {
  const auto x = SafetensorsSource::open(a), y = SafetensorsSource::open(b);
  ASSERT_EQ(x.tensors().size(), y.tensors().size());
  for (const auto& [name, entry] : x.tensors()) {
    const TensorView v = x.view(name), w = y.view(name);
    ASSERT_EQ(v.dtype, w.dtype) << name;
    ASSERT_EQ(v.shape, w.shape) << name;
    EXPECT_EQ(std::memcmp(v.data, w.data, static_cast<size_t>(v.bytes())), 0) << name;
  }
}

// The tensors of a checkpoint, to be changed and written elsewhere.
struct Editable {
  Editable() = default;
  explicit Editable(const std::string& path) {
    const auto source = SafetensorsSource::open(path);
    for (const auto& [name, e] : source.tensors()) tensors[name] = HostTensor::from(source.view(name));
  }
  void write(const std::string& path) const {
    std::vector<std::pair<std::string, TensorView>> views;
    for (const auto& [name, t] : tensors) views.emplace_back(name, t.view());
    write_safetensors(path, views);
  }
  std::map<std::string, HostTensor> tensors;
};

class ShardTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  ThreadPool pool_{2};
  std::string import(const std::string& source, const std::string& name, ImportOptions options = {}) {
    import_checkpoint(source, folder_ / name, options);
    return folder_ / name;
  }
};

TEST_F(ShardTest, RoundTripInBothLayoutsIsByteIdentical) {
  for (const std::string& source : {kData + "/diffusers", kData + "/sharded", kData + "/orig",
                                    kData + "/sharded/diffusion_pytorch_model.safetensors.index.json", kData + "/orig/orig.safetensors"}) {
    SCOPED_TRACE(source);
    ImportOptions again{.replace = true};
    const auto model = ModelDirectory::open(import(source, "model", again));
    EXPECT_TRUE(model.verify(pool_).empty());
    EXPECT_EQ(model.manifest().dtype, "F32");
    EXPECT_EQ(model.manifest().parameters, 27944);
    EXPECT_EQ(model.manifest().parameters, parameter_count(model.config()));
    export_checkpoint(model, folder_ / "diffusers", {.layout = WanLayout::kDiffusers, .replace = true});
    export_checkpoint(model, folder_ / "orig", {.layout = WanLayout::kOriginal, .replace = true});
    export_checkpoint(model, folder_ / "shards", {.layout = WanLayout::kDiffusers, .max_shard_bytes = 30'000, .replace = true});
    expect_same_tensors(kData + "/diffusers", folder_ / "diffusers");
    expect_same_tensors(kData + "/orig/orig.safetensors", folder_ / "orig");
    expect_same_tensors(kData + "/diffusers", folder_ / "shards");
    EXPECT_GT(std::distance(fs::directory_iterator(folder_ / "shards"), fs::directory_iterator()), 4);
    // What was exported can be imported again, to the same state.
    EXPECT_EQ(hash_state(model), hash_state(ModelDirectory::open(import(folder_ / "shards", "again", again))));
    EXPECT_EQ(hash_state(model), hash_state(ModelDirectory::open(import(folder_ / "orig", "again", again))));
  }
}

TEST_F(ShardTest, ExportedSingleFileHasTheReferenceWritersBytes) {
  const auto model = ModelDirectory::open(import(kData + "/orig", "model"));
  export_checkpoint(model, folder_ / "out.safetensors", {});
  EXPECT_EQ(read_file(folder_ / "out.safetensors"), read_file(kData + "/diffusers/diffusion_pytorch_model.safetensors"));
  expect_contains(error_of([&] { export_checkpoint(model, folder_ / "out.safetensors", {}); }), "exists");
}

TEST_F(ShardTest, ConfigSurvives) {
  const auto diffusers = ModelDirectory::open(import(kData + "/diffusers", "d"));
  const auto original = ModelDirectory::open(import(kData + "/orig", "o"));
  for (const auto& model : {diffusers, original}) {
    const ModelConfig& c = model.config();
    EXPECT_EQ(c.dim, 24);
    EXPECT_EQ(c.heads, 2);
    EXPECT_EQ(c.ffn_dim, 32);
    EXPECT_EQ(c.layers, 2);
    EXPECT_EQ(c.text_dim, 16);
    EXPECT_EQ(c.freq_dim, 256);
    EXPECT_EQ(c.in_channels, 16);
    EXPECT_EQ(c.eps, 1e-6);
  }
  EXPECT_EQ(diffusers.config().rope_max_seq_len, 32);
  export_checkpoint(diffusers, folder_ / "dd", {});
  EXPECT_EQ(read_file(folder_ / "dd/config.json"), read_file(kData + "/diffusers/config.json"));
  export_checkpoint(diffusers, folder_ / "do", {.layout = WanLayout::kOriginal});
  const auto made = nlohmann::json::parse(read_file(folder_ / "do/config.json"));
  const auto given = nlohmann::json::parse(read_file(kData + "/orig/config.json"));
  EXPECT_EQ(made, given);
  export_checkpoint(original, folder_ / "od", {});
  auto made_diffusers = nlohmann::json::parse(read_file(folder_ / "od/config.json"));
  auto given_diffusers = nlohmann::json::parse(read_file(kData + "/diffusers/config.json"));
  for (const char* key : {"_diffusers_version", "rope_max_seq_len"}) made_diffusers.erase(key), given_diffusers.erase(key);
  EXPECT_EQ(made_diffusers, given_diffusers);
}

TEST_F(ShardTest, FilesAreAlignedAndSelfDescribing) {
  const auto model = ModelDirectory::open(import(kData + "/diffusers", "m"));
  for (int64_t part = -1; part <= model.layers(); ++part) EXPECT_EQ(model.part(part).header_bytes() % 4096, 0);
  EXPECT_TRUE(model.layer(1).find("blocks.1.attn2.to_k.bias"));
  EXPECT_TRUE(model.embed().find("condition_embedder.time_proj.weight"));
  EXPECT_TRUE(model.head().find("scale_shift_table"));
}

TEST_F(ShardTest, VerifyFindsOneFlippedBitInEveryFile) {
  const std::string path = import(kData + "/diffusers", "m");
  const auto model = ModelDirectory::open(path);
  for (const ManifestFile& f : model.manifest().files) {
    const std::string file = path + "/" + f.name, good = read_file(file);
    for (const size_t at : {good.size() - 1, good.size() / 2, size_t{9}}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      std::ofstream(file, std::ios::binary) << bad;
      const auto differences = model.verify(pool_);
      ASSERT_EQ(differences.size(), 1u) << f.name;
      EXPECT_EQ(differences[0].name, f.name);
    }
    std::ofstream(file, std::ios::binary) << good;
  }
  EXPECT_TRUE(model.verify(pool_).empty());
  // One bit of the manifest: in a value, in a hash, in its syntax.
  const std::string manifest = path + "/manifest.json", good = read_file(manifest);
  for (const auto& [text, bit] : {std::pair("\"eps\"", 8), std::pair("\"sha256\": \"", 11), std::pair("\"files\"", 1)}) {
    std::string bad = good;
    const size_t at = bad.find(text) + static_cast<size_t>(bit);
    bad[at] = static_cast<char>(bad[at] ^ 1);
    std::ofstream(manifest, std::ios::binary) << bad;
    const Verdict v = verify_model(path, pool_);
    EXPECT_FALSE(v.good);
    expect_contains(v.text, "manifest.json: ");
  }
  std::ofstream(manifest, std::ios::binary) << good;
  EXPECT_TRUE(verify_model(path, pool_).good);
  EXPECT_EQ(verify_model(path, pool_).text, "");
  fs::remove(path + "/layer-001.safetensors");
  EXPECT_EQ(model.verify(pool_).size(), 1u);
  expect_contains(verify_model(path, pool_).text, "layer-001.safetensors: open ");
  expect_contains(error_of([&] { ModelDirectory::open(path); }), "layer-001.safetensors");
  std::ofstream(path + "/layer-001.safetensors") << "short";
  expect_contains(error_of([&] { ModelDirectory::open(path); }), "5 bytes, the manifest says");
}

TEST_F(ShardTest, DtypeConversion) {
  const auto keep = ModelDirectory::open(import(kData + "/diffusers", "keep"));
  const auto half = ModelDirectory::open(import(kData + "/diffusers", "half", {.dtype = StoreDtype::kBf16}));
  EXPECT_EQ(half.manifest().dtype, "BF16");
  const auto a = keep.layer(0), b = half.layer(0);
  for (const TensorInfo& t : a.tensors()) {
    const TensorView x = a.view(t), y = b.view(t.name);
    ASSERT_EQ(y.dtype, DType::kBF16);
    for (int64_t i = 0; i < x.elements(); ++i) {
      float value;
      uint16_t bits;
      std::memcpy(&value, x.data + 4 * i, 4);
      std::memcpy(&bits, y.data + 2 * i, 2);
      ASSERT_EQ(bits, to_bf16(value).bits) << t.name << " " << i;
    }
  }
  export_checkpoint(half, folder_ / "half-out", {});
  export_checkpoint(half, folder_ / "wide-out", {.dtype = StoreDtype::kFp32});
  const auto narrow = SafetensorsSource::open(folder_ / "half-out"), wide = SafetensorsSource::open(folder_ / "wide-out");
  for (const auto& [name, e] : narrow.tensors()) {
    const auto x = HostTensor::f32_from(narrow.view(name));
    EXPECT_EQ(std::memcmp(x.data(), wide.view(name).data, static_cast<size_t>(x.bytes())), 0) << name;
  }
  // bf16 to fp32 and back is lossless: the same state.
  EXPECT_EQ(hash_state(half), hash_state(ModelDirectory::open(import(folder_ / "wide-out", "wide"))));
  EXPECT_NE(hash_state(half), hash_state(keep));
}

TEST_F(ShardTest, F16StaysF16) {
  Editable e(kData + "/diffusers");
  for (auto& [name, t] : e.tensors) {
    HostTensor h(DType::kF16, t.shape());
    convert_from_f32(h.data(), DType::kF16, t.f32(), t.elements());
    t = std::move(h);
  }
  fs::create_directory(folder_ / "f16");
  e.write(folder_ / "f16/diffusion_pytorch_model.safetensors");
  fs::copy_file(kData + "/diffusers/config.json", folder_ / "f16/config.json");
  const auto model = ModelDirectory::open(import(folder_ / "f16", "m"));
  EXPECT_EQ(model.manifest().dtype, "F16");
  export_checkpoint(model, folder_ / "out", {});
  expect_same_tensors(folder_ / "f16", folder_ / "out");
}

TEST_F(ShardTest, RepackPrefixesAndForeignTensorsBeside) {
  for (const std::string prefix : {"model.diffusion_model.", "diffusion_model.", "model."}) {
    Editable e(kData + "/orig/orig.safetensors"), packed;
    for (auto& [name, t] : e.tensors) packed.tensors[prefix + name] = std::move(t);
    packed.tensors["vae.decoder.weight"] = HostTensor(DType::kF32, {3});
    fs::create_directories(folder_ / "pack");
    packed.write(folder_ / "pack/pack.safetensors");
    fs::copy_file(kData + "/orig/config.json", folder_ / "pack/config.json", fs::copy_options::overwrite_existing);
    const auto model = ModelDirectory::open(import(folder_ / "pack/pack.safetensors", "m", {.replace = true}));
    EXPECT_EQ(model.manifest().source.prefix, prefix);
    EXPECT_EQ(model.manifest().source.layout, "wan");
    export_checkpoint(model, folder_ / "out", {.layout = WanLayout::kOriginal, .replace = true});
    expect_same_tensors(kData + "/orig/orig.safetensors", folder_ / "out");
  }
}

TEST_F(ShardTest, AllFindingsAtOnce) {
  Editable e(kData + "/diffusers");
  e.tensors.erase("blocks.0.attn1.to_q.weight");
  e.tensors.erase("blocks.1.norm2.bias");
  e.tensors["blocks.0.attn1.to_qq.weight"] = HostTensor(DType::kF32, {24, 24});
  e.tensors["blocks.1.ffn.net.2.bias"] = HostTensor(DType::kF32, {25});
  e.tensors["proj_out.bias"] = HostTensor(DType::kI32, {64});
  fs::create_directory(folder_ / "bad");
  e.write(folder_ / "bad/diffusion_pytorch_model.safetensors");
  fs::copy_file(kData + "/diffusers/config.json", folder_ / "bad/config.json");
  const std::string message = error_of([&] { import(folder_ / "bad", "m"); });
  expect_contains(message, "2 missing, 1 of wrong shape, 1 of unusable type, 1 unknown");
  expect_contains(message, "missing: blocks.0.attn1.to_q.weight [24, 24]");
  expect_contains(message, "missing: blocks.1.norm2.bias [24]");
  expect_contains(message, "wrong shape: blocks.1.ffn.net.2.bias is [25], expected [24]");
  expect_contains(message, "unusable type: proj_out.bias is I32");
  expect_contains(message, "unknown: \"blocks.0.attn1.to_qq.weight\" (did you mean blocks.0.attn1.to_q.weight?)");
  EXPECT_FALSE(fs::exists(folder_ / "m"));
  EXPECT_FALSE(fs::exists(folder_ / "m.tmp"));
}

TEST_F(ShardTest, OtherThingsAreNamed) {
  const auto file_with = [&](const std::string& tensor) {
    const HostTensor t(DType::kF32, {2});
    write_safetensors(folder_ / "x.safetensors", {{tensor, t.view()}});
    return error_of([&] { import(folder_ / "x.safetensors", "m"); });
  };
  expect_contains(file_with("diffusion_model.blocks.0.self_attn.q.lora_A.weight"), "a LoRA adapter");
  expect_contains(file_with("decoder.conv_in.weight"), "a video autoencoder");
  expect_contains(file_with("encoder.block.0.layer.0.SelfAttention.q.weight"), "a text encoder");
  expect_contains(file_with("transformer_blocks.0.attn.to_q.weight"), "another architecture");
  expect_contains(file_with("something"), "no tensor patch_embedding.weight among 1 tensors");
  const auto file_of = [&](const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content << std::string(64, '\0');
    return error_of([&] { import(folder_ / name, "m"); });
  };
  expect_contains(file_of("w.gguf", "GGUF"), "GGUF");
  expect_contains(file_of("w.pth", std::string("PK\x03\x04", 4)), "not a whole zip archive");
  expect_contains(file_of("w.safetensors", "version https://git-lfs.github.com/spec/v1\n"), "git lfs pull");
  expect_contains(error_of([&] { import(folder_ / "none", "m"); }), "no such file or folder");
  fs::create_directory(folder_ / "empty");
  expect_contains(error_of([&] { import(folder_ / "empty", "m"); }), "holds no .safetensors file");
  std::ofstream(folder_ / "empty/model-Q4_K_M.gguf") << "GGUF";
  expect_contains(error_of([&] { import(folder_ / "empty", "m"); }), "original weights");
}

TEST_F(ShardTest, ConfigMustFitTheWeights) {
  fs::copy(kData + "/diffusers", folder_ / "s");
  const std::string config = folder_ / "s/config.json", good = read_file(config);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    std::ofstream(config) << text;
    return error_of([&] { import(folder_ / "s", "m"); });
  };
  expect_contains(with("\"num_layers\": 2", "\"num_layers\": 3"), "num_layers is 3, but the weights have 2");
  expect_contains(with("\"attention_head_dim\": 12", "\"attention_head_dim\": 13"), "2 heads of 13");
  expect_contains(with("\"num_attention_heads\": 2", "\"num_attention_heads\": \"2\""), "num_attention_heads must be an integer, found \"2\"");
  expect_contains(with("\"num_attention_heads\": 2", "\"num_attention_heads\": 4611686018427387904"), "num_attention_heads is 4611686018427387904, unusable");
  expect_contains(with("\"eps\"", "\"ffn_dim\": 32, \"eps\""), "duplicate key");
  fs::remove(config);
  expect_contains(error_of([&] { import(folder_ / "s", "m"); }), "put the model's config.json beside the weights");
}

TEST_F(ShardTest, OverwritingIsAsked) {
  import(kData + "/diffusers", "m");
  expect_contains(error_of([&] { import(kData + "/diffusers", "m"); }), "exists and is not empty");
  expect_contains(error_of([&] { import(folder_ / "m", "n"); }), "already a model directory");
  fs::create_directory(folder_ / "photos");
  std::ofstream(folder_ / "photos/a.jpg") << "x";
  expect_contains(error_of([&] { import(kData + "/diffusers", "photos", {.replace = true}); }), "no model directory");
  const auto model = ModelDirectory::open(folder_ / "m");
  expect_contains(error_of([&] { export_checkpoint(model, folder_ / "photos", {.replace = true}); }), "such as a.jpg");
  expect_contains(error_of([&] { export_checkpoint(model, folder_ / "photos", {}); }), "--overwrite");
  EXPECT_EQ(read_file(folder_ / "photos/a.jpg"), "x");
  // Not even when asked: an export holds less than a model directory.
  for (const char* out : {"m", "m/", "m/layer-000.safetensors"})
    expect_contains(error_of([&] { export_checkpoint(model, folder_ / out, {.replace = true}); }), "is a model directory, which an export does not replace");
  EXPECT_TRUE(model.verify(pool_).empty());
  for (int i = 0; i < 2; ++i) export_checkpoint(model, folder_ / "exported", {.replace = true});
}

TEST_F(ShardTest, OffsetNetsComeAndGo) {
  std::vector<std::string> warnings;
  const auto previous = set_log_sink([&](LogLevel level, const std::string& text) {
    if (level == LogLevel::kWarning) warnings.push_back(text);
  });
  const std::string path = import(kData + "/diffusers", "m", {.attention = AttentionKind::kDsa});
  const auto model = ModelDirectory::open(path);
  EXPECT_EQ(model.config().attention.kind, AttentionKind::kDsa);
  EXPECT_EQ(model.manifest().parameters, parameter_count(model.config()));
  const auto layer = model.layer(1);
  const auto conv = HostTensor::f32_from(layer.view("blocks.1.attn1.offset_net.conv.weight"));
  EXPECT_EQ(conv.shape(), (Shape{24, 1, 3, 3, 3}));
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < conv.elements(); ++i) sum += conv.f32()[i], squares += conv.f32()[i] * conv.f32()[i];
  const auto n = static_cast<double>(conv.elements());
  // 648 normal values of deviation 1/sqrt(27) = 0.192: mean within 4 deviations of the mean, variance within 25%.
  EXPECT_LT(std::abs(sum / n), 4 * 0.192 / std::sqrt(n));
  EXPECT_NEAR(squares / n * 27, 1, 0.25);
  for (const char* name : {"norm.weight", "norm.bias", "linear.weight", "linear.bias", "conv.bias"}) {
    const auto t = HostTensor::f32_from(layer.view(std::string("blocks.1.attn1.offset_net.") + name));
    for (int64_t i = 0; i < t.elements(); ++i) ASSERT_EQ(t.f32()[i], std::string(name) == "norm.weight" ? 1 : 0) << name;
  }
  // The motion term comes along, switched off: a trained model starts as what it was.
  EXPECT_TRUE(model.config().attention.dsa.motion());
  EXPECT_EQ(model.config().attention.dsa.motion_share, 0);
  const auto projection = HostTensor::f32_from(layer.view("blocks.1.attn1.offset_net.motion_proj.weight"));
  EXPECT_EQ(projection.shape(), (Shape{16, 24}));
  squares = 0;
  for (int64_t i = 0; i < projection.elements(); ++i) squares += projection.f32()[i] * projection.f32()[i];
  // 384 normal values of variance 1/24: 30% is about four deviations.
  EXPECT_NEAR(squares / 16, 1, 0.3);
  EXPECT_EQ(HostTensor::f32_from(layer.view("blocks.1.attn1.offset_net.motion_beta")).f32()[0], 1);
  const auto gain = HostTensor::f32_from(layer.view("blocks.1.attn1.offset_net.motion_gain"));
  for (int64_t i = 0; i < gain.elements(); ++i) EXPECT_EQ(gain.f32()[i], 0);
  export_checkpoint(model, folder_ / "out", {});
  expect_same_tensors(kData + "/diffusers", folder_ / "out");
  EXPECT_TRUE(warnings.empty());
  // With learned offsets the export says what is lost.
  const std::string file = path + "/layer-000.safetensors";
  const auto info = *model.layer(0).find("blocks.0.attn1.offset_net.linear.bias");
  std::string bytes = read_file(file);
  bytes[static_cast<size_t>(model.layer(0).header_bytes() + info.begin)] = 1;
  std::ofstream(file, std::ios::binary) << bytes;
  export_checkpoint(model, folder_ / "out2", {});
  ASSERT_EQ(warnings.size(), 1u);
  expect_contains(warnings[0], "learned offsets");
  set_log_sink(previous);
}

TEST_F(ShardTest, SchedulerAndItsShiftComeAlong) {
  fs::create_directories(folder_ / "p/scheduler");
  fs::copy(kData + "/diffusers", folder_ / "p/transformer");
  std::ofstream(folder_ / "p/model_index.json") << "{}";
  std::ofstream(folder_ / "p/scheduler/scheduler_config.json") << "{\"flow_shift\": 3.0}";
  for (const std::string source : {"p", "p/", "p/transformer", "p/transformer/diffusion_pytorch_model.safetensors"}) {
    const auto model = ModelDirectory::open(import(folder_ / source, "m", {.replace = true}));
    EXPECT_EQ(read_file(model.component("scheduler/scheduler_config.json")), "{\"flow_shift\": 3.0}");
    EXPECT_EQ(model.config().flow_shift, 3);
    EXPECT_TRUE(model.verify(pool_).empty());
  }
}

TEST_F(ShardTest, SplitAndFullMastersHashAlike) {
  // A state as a trainer writes it (kernels/adamw): the low 16 bits of the master are the signed remainder.
  const auto model = ModelDirectory::open(import(kData + "/diffusers", "m"));
  StateHasher live;
  const auto write_checkpoint = [&](const std::string& name, bool split) {
    ModelDirectoryWriter writer(folder_ / name, model.config(), false, 0);
    for (int64_t part = -1; part <= model.layers(); ++part) {
      const auto file = model.part(part);
      std::vector<SafetensorsEntry> entries;
      std::vector<HostTensor> data;
      for (const WanTensor& t : wan_tensors(model.config(), part)) {
        const auto p = HostTensor::f32_from(file.view(t.name));
        HostTensor w(DType::kBF16, t.shape), low(DType::kI16, t.shape), v(DType::kF32, t.shape);
        auto* wp = reinterpret_cast<uint16_t*>(w.data());
        auto* lp = reinterpret_cast<int16_t*>(low.data());
        for (int64_t i = 0; i < p.elements(); ++i) {
          const auto bits = std::bit_cast<uint32_t>(p.f32()[i]);
          wp[i] = static_cast<uint16_t>((bits + 0x8000) >> 16);
          lp[i] = static_cast<int16_t>(bits & 0xffff);
          v.f32()[i] = p.f32()[i] * p.f32()[i];
        }
        const auto n = static_cast<size_t>(p.elements());
        if (!split) live.add_tensor(t.name, {wp, n}, {p.f32(), n}, {p.f32(), n}, {v.f32(), n});
        const auto add = [&](const std::string& suffix, const HostTensor& x) {
          entries.push_back({t.name + suffix, x.dtype(), x.shape()});
          data.push_back(x.clone());
        };
        add("", w);
        if (split) add(".master_low", low);
        else add(".master", p);
        add(".exp_avg", p);
        add(".exp_avg_sq", v);
      }
      const std::string file_name = part < 0 ? kEmbedFile : part == model.layers() ? kHeadFile : layer_file_name(part);
      writer.write_file(file_name, entries, [&](size_t i, const ModelDirectoryWriter::Sink& sink) {
        sink({data[i].data(), static_cast<size_t>(data[i].bytes())});
      });
    }
    writer.set_state("{\"step\": 7, \"rng\": \"seed 1\"}");
    writer.commit();
    return ModelDirectory::open(folder_ / name);
  };
  const auto full = write_checkpoint("full", false), split = write_checkpoint("split", true);
  live.add_step(7, "seed 1");
  EXPECT_EQ(hash_state(full), live.hex());
  EXPECT_EQ(hash_state(split), live.hex());
  EXPECT_TRUE(split.is_checkpoint());
  EXPECT_EQ(split.manifest().dtype, "BF16");
  EXPECT_EQ(split.manifest().parameters, 27944);
  EXPECT_EQ(describe(split).step, 7u);
  // fp32 export gives the masters, keep the weights.
  export_checkpoint(split, folder_ / "fp32", {.dtype = StoreDtype::kFp32});
  expect_same_tensors(kData + "/diffusers", folder_ / "fp32");
  export_checkpoint(full, folder_ / "keep", {});
  EXPECT_EQ(SafetensorsSource::open(folder_ / "keep").view("proj_out.bias").dtype, DType::kBF16);
}

TEST_F(ShardTest, SummaryHasTheContractsFields) {
  const auto model = ModelDirectory::open(import(kData + "/diffusers", "m"));
  const auto j = nlohmann::json::parse(summary_to_json(describe(model), model.manifest()));
  EXPECT_EQ(j["parameters"], 27944);
  EXPECT_EQ(j["layers"], 2);
  EXPECT_EQ(j["dtype"], "F32");
  EXPECT_EQ(j["attention"], "dense");
  EXPECT_EQ(j["tensors"].size(), 69u);
  EXPECT_EQ(j["tensors"][0]["name"], "patch_embedding.weight");
  EXPECT_EQ(j["tensors"][0]["shape"], (std::vector<int64_t>{24, 16, 1, 2, 2}));
  int64_t bytes = 0;
  for (const auto& f : model.manifest().files) bytes += f.bytes;
  EXPECT_EQ(j["bytes"], bytes);
  EXPECT_FALSE(summary_to_text(describe(model), model.manifest()).empty());
}

}  // namespace
}  // namespace megaslide
