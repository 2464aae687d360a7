// C entry points for compare_umt5.py: one block of the UMT5 encoder.
#include <cstring>
#include <memory>

#include "base/error.h"
#include "device/device.h"
#include "model/umt5_block.h"

using namespace megaslide;

namespace {

struct Block {
  Block(int threads, const Umt5Config& config, const void* const* weights, int64_t rows)
      : block(config), stream(threads), slab(DType::kBF16, {block.layout().elements}), packed(DType::kU8, {block.packed_bytes(DType::kBF16, false)}) {
    for (size_t p = 0; p < block.params().size(); ++p)
      std::memcpy(slab.data() + block.layout().offset[p] * 2, weights[p], static_cast<size_t>(element_count(block.params()[p].shape)) * 2);
    pack();
    Workspace measure;
    block.forward({make_sim_device({})->compute(), measure, {.width = rows}, DType::kBF16, slab.data(), packed.data()}, {}, nullptr, nullptr, nullptr);
    space = HostTensor(DType::kU8, {measure.high_water()});
  }
  void pack() { block.pack(stream, DType::kBF16, false, slab.data(), packed.data()); }
  void forward(const float* x, float* y, int64_t rows) {
    Workspace workspace(space.data(), space.bytes());
    block.forward({stream, workspace, {.width = rows}, DType::kBF16, slab.data(), packed.data()}, {}, x, y, nullptr);
  }
  Umt5Block block;
  InlineStream stream;
  HostTensor slab, packed, space;
};

}  // namespace

extern "C" {

// weights: bf16, in the order of Umt5Block's parameters; copied. Calls take at most `rows` tokens.
void* ms_umt5_block(int threads, int64_t width, int64_t heads, int64_t head_dim, int64_t ffn_width, const void* const* weights, int64_t rows) {
  return new Block(threads, {.width = width, .heads = heads, .head_dim = head_dim, .ffn_width = ffn_width}, weights, rows);
}
// x, y: fp32 (rows, width).
void ms_umt5_forward(void* block, const float* x, float* y, int64_t rows) { static_cast<Block*>(block)->forward(x, y, rows); }
void ms_umt5_pack(void* block) { static_cast<Block*>(block)->pack(); }
}
