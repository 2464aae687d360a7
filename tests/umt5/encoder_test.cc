// The encoder as a whole: independence of neighbours and threads, forms of the checkpoint, faults.
#include <cstring>
#include <functional>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "io/json.h"
#include "model/text_encoder.h"
#include "model/umt5.h"
#include "tests/umt5/umt5_testing.h"

namespace megaslide {
namespace {

using namespace umt5_testing;

std::vector<EncodedText> encode(const ModelParts& parts, const std::vector<std::string>& prompts, int threads, DType dtype) {
  ThreadPool pool(threads);
  return make_text_encoder(parts, dtype)->encode_all(pool, prompts);
}

void expect_equal(const EncodedText& a, const EncodedText& b) {
  EXPECT_EQ(a.ids, b.ids);
  ASSERT_EQ(a.rows.shape(), b.rows.shape());
  EXPECT_EQ(std::memcmp(a.rows.data(), b.rows.data(), static_cast<size_t>(a.rows.bytes())), 0);
}

std::vector<std::string> prompts() {
  std::string longer, longest;
  for (int i = 0; i < 30; ++i) longer += "a robot dances; ";
  for (int i = 0; i < 3000; ++i) longest += "园丁穿过沙漠 ";
  return {"A robot dances in a kitchen.", "", longer, "x", longest, "A robot dances in a kitchen."};
}

TEST(Encoder, RowsDependOnNeitherNeighboursNorThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto all = encode(parts_in(kFolder), prompts(), 1, dtype), more_threads = encode(parts_in(kFolder), prompts(), 4, dtype);
    ASSERT_EQ(all.size(), 6u);
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(i);
      expect_equal(all[i], more_threads[i]);
      expect_equal(all[i], encode(parts_in(kFolder), {prompts()[i]}, 2, dtype)[0]);
    }
    expect_equal(all[0], all[5]);
  }
}

TEST(Encoder, LengthsAndCounts) {
  const auto all = encode(parts_in(kFolder), prompts(), 2, DType::kF32);
  EXPECT_EQ(all[1].ids, std::vector<int64_t>{1});  // the empty prompt is its </s>
  EXPECT_EQ(all[1].rows.shape(), (Shape{1, 64}));
  EXPECT_EQ(all[1].cut, 0);
  EXPECT_EQ(all[4].ids.size(), 512u);
  EXPECT_EQ(all[4].ids.back(), 1);
  EXPECT_GT(all[4].cut, 5000);
  ModelParts parts = parts_in(kFolder);
  parts.config.text_len = 4;
  const auto shorter = encode(parts, {"A robot dances in a kitchen."}, 2, DType::kF32);
  EXPECT_EQ(shorter[0].ids.size(), 4u);
  EXPECT_EQ(shorter[0].ids.back(), 1);
  EXPECT_EQ(shorter[0].cut, 9 - 3);
}

// More rows than one pass takes.
TEST(Encoder, SeveralPasses) {
  const std::vector<std::string> many(20, prompts()[4]);
  const auto all = encode(parts_in(kFolder), many, 2, DType::kF32);
  for (const EncodedText& e : all) expect_equal(e, all[0]);
}

TEST(Encoder, NoPrompts) { EXPECT_TRUE(encode(parts_in(kFolder), {}, 1, DType::kF32).empty()); }

TEST(Checkpoint, ShardsTiedNamesDecodersAndTypes) {
  const std::vector<std::string> text{"A robot dances in a kitchen."};
  const EncodedText expected = std::move(encode(parts_in(kFolder), text, 2, DType::kF32)[0]);
  {
    const ModelFolder model;
    Tensors t;
    t.rename("shared.weight", "encoder.embed_tokens.weight");
    t.list.emplace_back("decoder.final_layer_norm.weight", HostTensor(DType::kF32, {3}));
    t.list.emplace_back("lm_head.weight", HostTensor(DType::kI64, {3}));
    nlohmann::json map;
    for (size_t i = 0; i < t.list.size(); ++i) map[t.list[i].first] = i < 7 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    t.write(model.encoder() + "/model-00001-of-00002.safetensors", 0, 7);
    t.write(model.encoder() + "/model-00002-of-00002.safetensors", 7);
    write_file_atomic(model.encoder() + "/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
    expect_equal(encode(model.parts(), text, 2, DType::kF32)[0], expected);
  }
  {
    // Both names: shared.weight counts, whatever the other holds.
    const ModelFolder model;
    Tensors t;
    t.list.emplace_back("encoder.embed_tokens.weight", HostTensor(DType::kF32, {1000, 64}));
    t.write(model.encoder() + "/model.safetensors");
    expect_equal(encode(model.parts(), text, 2, DType::kF32)[0], expected);
  }
  // A checkpoint in bf16 is in bf16 what one in fp32 is: the same rounding, once.
  const EncodedText in_bf16 = std::move(encode(parts_in(kFolder), text, 2, DType::kBF16)[0]);
  const ModelFolder model;
  Tensors t;
  t.convert(DType::kBF16);
  t.write(model.encoder() + "/model.safetensors");
  const EncodedText narrow = std::move(encode(model.parts(), text, 2, DType::kBF16)[0]);
  // All but the embeddings, which are fp32 rows where the file has them so.
  EXPECT_LT(relative_error(narrow.rows.f32(), in_bf16.rows.f32(), narrow.rows.elements()), 1.07e-2);
  Tensors half;
  half.convert(DType::kF16);
  half.write(model.encoder() + "/model.safetensors");
  const EncodedText f16 = std::move(encode(model.parts(), text, 2, DType::kF32)[0]);
  // Weights have 11 bits instead of 24: 2^-12 a weight, times the gain that bf16's 2^-9 shows (1e-2).
  EXPECT_LT(relative_error(f16.rows.f32(), expected.rows.f32(), f16.rows.elements()), 1.07e-2 / 8);
}

TEST(Checkpoint, AllFaultsAtOnce) {
  const ModelFolder model;
  Tensors t;
  t.remove("encoder.final_layer_norm.weight");
  t.at("encoder.block.0.layer.0.SelfAttention.q.weight") = HostTensor(DType::kF32, {64, 63});
  t.at("encoder.block.1.layer.1.DenseReluDense.wi_1.weight") = HostTensor(DType::kI8, {96, 64});
  t.rename("encoder.block.1.layer.1.layer_norm.weight", "encoder.block.2.layer.1.layer_norm.weight");
  t.write(model.encoder() + "/model.safetensors");
  const std::string message = message_of([&] { make_text_encoder(model.parts()); });
  for (const char* part : {"text_encoder: the weights do not fit", "encoder.final_layer_norm.weight is missing", "q.weight is [64, 63], expected [64, 64]",
                           "wi_1.weight is I8, expected F32, F16 or BF16", "encoder.block.1.layer.1.layer_norm.weight is missing",
                           "\"encoder.block.2.layer.1.layer_norm.weight\" is none of"})
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
}

TEST(Checkpoint, ExtrasAreCounted) {
  const ModelFolder model;
  Tensors t;
  for (int i = 0; i < 100; ++i) t.list.emplace_back("lora." + std::to_string(i), HostTensor(DType::kF32, {1}));
  t.write(model.encoder() + "/model.safetensors");
  const std::string message = message_of([&] { make_text_encoder(model.parts()); });
  EXPECT_NE(message.find("and 88 more"), std::string::npos) << message;
  EXPECT_LT(message.size(), 2000u);
}

TEST(Config, FaultsAreNamed) {
  const ModelFolder model;
  const std::string path = model.encoder() + "/config.json";
  const nlohmann::json good = read_json(path);
  const auto with = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json j = good;
    change(j);
    write_file_atomic(path, j.dump());
    return message_of([&] { read_umt5_config(path); });
  };
  const auto has = [&](const std::string& message, const char* part) {
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  EXPECT_EQ(with([](auto&) {}), "");
  EXPECT_EQ(with([](auto& j) { j.erase("model_type"); }), "");
  has(with([](auto& j) { j["model_type"] = "t5"; }), "model_type is \"t5\"");
  has(with([](auto& j) { j["feed_forward_proj"] = "relu"; }), "feed_forward_proj is \"relu\"");
  has(with([](auto& j) { j["relative_attention_max_distance"] = 64; }), "relative_attention_max_distance is 64");
  has(with([](auto& j) { j["d_model"] = -1; j["num_layers"] = 1e9; j.erase("d_ff"); }), "d_model is -1");
  has(with([](auto& j) { j["num_heads"] = 1LL << 60; }), "num_heads");
  has(with([](auto& j) { j["layer_norm_epsilon"] = "x"; }), "layer_norm_epsilon");
  write_file_atomic(path, "[]");
  has(message_of([&] { read_umt5_config(path); }), "config.json");
  write_file_atomic(path, std::string(100, '{'));
  has(message_of([&] { read_umt5_config(path); }), "config.json");
  fs::remove(path);
  has(message_of([&] { read_umt5_config(path); }), "config.json");
}

TEST(Parts, WhatIsMissingIsSaid) {
  ModelParts none = parts_in("");
  EXPECT_NE(message_of([&] { make_text_encoder(none); }).find("wants a UMT5 text encoder, but text_encoder/ is not there"), std::string::npos);
  const ModelFolder model;
  fs::remove_all(model.path() + "/tokenizer");
  EXPECT_NE(message_of([&] { text_encoder_identity(model.parts()); }).find("/tokenizer is not there"), std::string::npos);
  ModelParts wide = parts_in(kFolder);
  wide.config.text_dim = 4096;
  EXPECT_NE(message_of([&] { make_text_encoder(wide); }).find("gives rows of 64, the model \"tiny-umt5\" reads rows of 4096"), std::string::npos);
}

TEST(Parts, IdentityFollowsWeightsAndTokenizer) {
  const ModelParts parts = parts_in(kFolder);
  const std::string identity = text_encoder_identity(parts);
  EXPECT_EQ(identity.rfind("umt5:", 0), 0u);
  EXPECT_EQ(make_text_encoder(parts, DType::kF32)->identity(), identity);
  const ModelFolder model;
  Tensors t;
  t.write(model.encoder() + "/model.safetensors");
  const std::string copy = text_encoder_identity(model.parts());
  write_file_atomic(model.path() + "/tokenizer/tokenizer.json", R"({"model":{"byte_fallback":false}})");
  EXPECT_NE(text_encoder_identity(model.parts()), copy);
  fs::remove(model.path() + "/tokenizer/tokenizer.json");
  EXPECT_EQ(text_encoder_identity(model.parts()), copy);
  t.at("encoder.final_layer_norm.weight").f32()[0] += 1;
  t.write(model.encoder() + "/model.safetensors");
  EXPECT_NE(text_encoder_identity(model.parts()), copy);
  ModelParts shorter = parts;
  shorter.config.text_len = 256;
  EXPECT_NE(text_encoder_identity(shorter), identity);
}

}  // namespace
}  // namespace megaslide
