// A block at sizes where products are cut into pieces, and what a run of many blocks keeps resident.
#include <cstring>
#include <fstream>
#include <numeric>
#include <span>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/philox.h"
#include "kernels/gemm/gemm.h"
#include "model/umt5.h"
#include "tests/umt5/umt5_testing.h"

namespace megaslide {
namespace {

using namespace umt5_testing;

struct Block {
  Block(DType type, int threads)
      : dtype(type), stream(threads), slab(type, {block.layout().elements}), packed(DType::kU8, {block.packed_bytes(type, false)}),
        space(DType::kU8, {int64_t{64} << 20}) {
    const Random random(3, RandomPurpose::kTest);
    std::vector<float> values(static_cast<size_t>(slab.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(0.04 * random.normal(0, i));
    convert_from_f32(slab.data(), type, values.data(), slab.elements());
    block.pack(stream, type, false, slab.data(), packed.data());
  }
  std::vector<float> forward(std::span<const int64_t> lengths, const float* x) {
    const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    std::vector<float> y(static_cast<size_t>(rows * config.width));
    Workspace workspace(space.data(), space.bytes());
    block.forward_texts({stream, workspace, {.width = rows}, dtype, slab.data(), packed.data()}, lengths, x, y.data());
    return y;
  }
  // Uneven sizes: pieces of rows, columns and depth all have remainders.
  Umt5Config config{.width = 680, .heads = 9, .head_dim = 64, .ffn_width = 1208};
  Umt5Block block{config};
  DType dtype;
  InlineStream stream;
  HostTensor slab, packed, space;
};

TEST(Block, RowsOfATextHaveTheSameBitsWhateverTheOthers) {
  const std::vector<int64_t> lengths{20, 1, 300, 33, 64};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Block one(dtype, 1), four(dtype, 4);
    std::vector<float> x(static_cast<size_t>(418 * one.config.width));
    const Random random(4, RandomPurpose::kTest);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random.normal(0, i));
    const std::vector<float> together = one.forward(lengths, x.data());
    EXPECT_EQ(together, four.forward(lengths, x.data()));
    if (!linear_rows_independent(dtype)) continue;  // then texts go one by one
    int64_t at = 0;
    for (const int64_t n : lengths) {
      const std::vector<float> alone = four.forward({&n, 1}, x.data() + at * one.config.width);
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + at * one.config.width, alone.size() * sizeof(float)), 0) << dtype_name(dtype) << " " << n;
      at += n;
    }
  }
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

// 24 blocks of 6 MB: the process grows by two slabs and the packed matrices, not by the checkpoint.
TEST(Run, FewBlocksAreResident) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers multiply a process's memory";
#endif
  const ModelFolder model;
  nlohmann::json json = nlohmann::json::parse(read_file(model.encoder() + "/config.json"));
  json.update({{"d_model", 512}, {"d_kv", 64}, {"num_heads", 8}, {"d_ff", 1280}, {"num_layers", 24}});
  write_file_atomic(model.encoder() + "/config.json", json.dump());
  const Umt5Config config = read_umt5_config(model.encoder() + "/config.json");
  const Umt5Block block(config);
  const int64_t slab = block.layout().elements * 2;
  {
    std::vector<std::pair<std::string, HostTensor>> tensors;
    tensors.emplace_back("shared.weight", HostTensor(DType::kBF16, {1000, 512}));
    tensors.emplace_back("encoder.final_layer_norm.weight", HostTensor(DType::kBF16, {512}));
    for (const ParamSpec& p : block.params()) tensors.emplace_back(p.name, HostTensor(DType::kBF16, p.shape));
    std::vector<std::pair<std::string, TensorView>> views{{tensors[0].first, tensors[0].second.view()}, {tensors[1].first, tensors[1].second.view()}};
    for (int64_t l = 0; l < config.layers; ++l)
      for (size_t p = 2; p < tensors.size(); ++p) views.emplace_back(fmt::format("encoder.block.{}.{}", l, tensors[p].first), tensors[p].second.view());
    write_safetensors(model.encoder() + "/model.safetensors", views);
  }
  ThreadPool pool(2);
  const Umt5 network(model.encoder(), DType::kBF16);
  const std::vector<std::vector<int64_t>> texts(4, std::vector<int64_t>(16, 5));
  const int64_t before = resident_bytes();
  int64_t most = 0;
  network.run(pool, texts, [&](int64_t, size_t, const float*) { most = std::max(most, resident_bytes()); });
  // Two slabs, one of packed matrices, one of the file's pages that are being read, and 16 MiB for threads and temporaries.
  EXPECT_LT(most - before, 4 * slab + (16 << 20)) << slab;
  EXPECT_GT(24 * slab, 2 * (4 * slab + (16 << 20)));
}

}  // namespace
}  // namespace megaslide
