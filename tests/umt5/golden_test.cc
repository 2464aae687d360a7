// The encoder against transformers (tests/data/umt5, golden/wan/umt5): values are an fp64 run's rounded to fp32.
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "kernels/relative_attention/relative_attention.h"
#include "model/text_encoder.h"
#include "model/umt5.h"
#include "tests/umt5/umt5_testing.h"

namespace megaslide {
namespace {

using namespace umt5_testing;

struct Golden {
  Golden() : io(SafetensorsFile::open(kFolder + "/io.safetensors")) {
    const TensorView ids = io.view("ids"), mask = io.view("mask");
    length = ids.shape[1];
    const auto* id = reinterpret_cast<const int64_t*>(ids.data);
    const auto* real = reinterpret_cast<const int64_t*>(mask.data);
    for (int64_t b = 0; b < ids.shape[0]; ++b) {
      int64_t n = 0;
      while (n < length && real[b * length + n] == 1) ++n;
      texts.emplace_back(id + b * length, id + b * length + n);
    }
  }
  // Relative L2 distance of the real rows of all texts.
  double distance(const std::string& name, const std::vector<std::vector<float>>& rows) const {
    const HostTensor expected = read_f32(io, name);
    const int64_t width = expected.shape()[2];
    std::vector<float> a, b;
    for (size_t t = 0; t < texts.size(); ++t) {
      const float* from = expected.f32() + static_cast<int64_t>(t) * length * width;
      a.insert(a.end(), rows[t].begin(), rows[t].end());
      b.insert(b.end(), from, from + static_cast<int64_t>(texts[t].size()) * width);
    }
    EXPECT_EQ(a.size(), b.size());
    return relative_error(a.data(), b.data(), static_cast<int64_t>(b.size()));
  }
  SafetensorsFile io;
  int64_t length = 0;
  std::vector<std::vector<int64_t>> texts;
};

struct Distances {
  double block0, block1, last;
};
Distances run(DType dtype) {
  const Golden golden;
  EXPECT_EQ(golden.texts.size(), 3u);
  const Umt5 network(kFolder + "/text_encoder", dtype);
  ThreadPool pool(2);
  std::vector<std::vector<float>> blocks[2], last;
  for (auto& b : blocks) b.resize(3);
  for (const HostTensor& rows : network.run(pool, golden.texts, [&](int64_t layer, size_t text, const float* rows_of_block) {
         blocks[layer][text].assign(rows_of_block, rows_of_block + golden.texts[text].size() * 64);
       }))
    last.emplace_back(rows.f32(), rows.f32() + rows.elements());
  const Distances d{golden.distance("block.0", blocks[0]), golden.distance("block.1", blocks[1]), golden.distance("last_hidden_state", last)};
  testing::Test::RecordProperty("distances", fmt::format("{:.3g} {:.3g} {:.3g}", d.block0, d.block1, d.last));
  return d;
}

// transformers in fp32 is 2.7e-7, 4.1e-7 and 4.2e-7 away (meta.json); four times that leaves room for another order of
// the same sums.
TEST(GoldenEncoder, Fp32) {
  const Distances d = run(DType::kF32);
  EXPECT_LT(d.block0, 4 * 2.7e-7);
  EXPECT_LT(d.block1, 4 * 4.1e-7);
  EXPECT_LT(d.last, 4 * 4.2e-7);
}

// transformers in bf16 is 6.6e-3, 1.02e-2 and 1.07e-2 away (eager attention): no worse, since sums, scores and the
// residual stream are fp32 here.
TEST(GoldenEncoder, Bf16) {
  const Distances d = run(DType::kBF16);
  EXPECT_LT(d.block0, 6.6e-3);
  EXPECT_LT(d.block1, 1.02e-2);
  EXPECT_LT(d.last, 1.07e-2);
  EXPECT_GT(d.last, 1e-4);  // it is bf16
}

TEST(GoldenEncoder, Buckets) {
  const auto io = SafetensorsFile::open(kFolder + "/io.safetensors");
  const TensorView relative = io.view("bucket_rel"), bucket = io.view("bucket");
  ASSERT_EQ(relative.elements(), 1023);
  for (int64_t i = 0; i < relative.elements(); ++i)
    EXPECT_EQ(relative_bucket(reinterpret_cast<const int64_t*>(relative.data)[i]), reinterpret_cast<const int64_t*>(bucket.data)[i]) << i;
}

// Prompts to embeds: what the transformer gets.
TEST(GoldenEncoder, PromptsToEmbeds) {
  const Golden golden;
  const nlohmann::json meta = read_json(kFolder + "/meta.json");
  const auto encoder = make_text_encoder(parts_in(kFolder), DType::kF32);
  ThreadPool pool(2);
  const auto prompts = meta.at("prompts").get<std::vector<std::string>>();
  const auto encoded = encoder->encode_all(pool, prompts);
  const HostTensor embeds = read_f32(golden.io, "embeds");
  for (size_t i = 0; i < 3; ++i) {
    // The reference data has the third text cut to 122 tokens; its rows before the cut would differ, attention sees all.
    if (encoded[i].ids != golden.texts[i]) {
      EXPECT_EQ(i, 2u);
      continue;
    }
    const float* expected = embeds.f32() + static_cast<int64_t>(i) * golden.length * 64;
    EXPECT_LT(relative_error(encoded[i].rows.f32(), expected, encoded[i].rows.elements()), 4 * 4.2e-7);
  }
}

// golden/wan/pipeline: ids and embeds of its prompt and negative prompt.
TEST(GoldenEncoder, WholeGoldenPipelinePrompts) {
  const char* golden = std::getenv("MEGASLIDE_GOLDEN");
  if (golden == nullptr) GTEST_SKIP() << "MEGASLIDE_GOLDEN does not name the reference data";
  const std::string folder = std::string(golden) + "/wan/pipeline";
  const nlohmann::json meta = read_json(folder + "/meta.json");
  const auto file = SafetensorsFile::open(folder + "/run.safetensors");
  const auto* ids = reinterpret_cast<const int64_t*>(file.view("ids").data);
  const auto encoder = make_text_encoder(parts_in(folder + "/model"), DType::kF32);
  ThreadPool pool(2);
  const std::vector<std::string> prompts{meta.at("prompt"), meta.at("negative_prompt")};
  const auto encoded = encoder->encode_all(pool, prompts);
  for (size_t i = 0; i < 2; ++i) {
    const auto n = static_cast<size_t>(meta.at("lengths")[i].get<int64_t>());
    EXPECT_EQ(encoded[i].ids, std::vector<int64_t>(ids + i * 512, ids + i * 512 + n));
    const HostTensor embeds = read_f32(file, i == 0 ? "prompt_embeds" : "negative_prompt_embeds");
    const HostTensor padded = pad_text(parts_in(folder).config, encoded[i].rows.view());
    EXPECT_LT(relative_error(padded.f32(), embeds.f32(), embeds.elements()), 4 * meta.at("noise_embeds")[i].get<double>());
  }
}

}  // namespace
}  // namespace megaslide
