#include "kernels/gemm/split_linear.h"

#include <algorithm>

#include "kernels/gemm/onednn.h"
#include "kernels/gemm/pieces.h"
#include "kernels/gemm/split_gemm.h"
#include "kernels/tile/unit.h"

namespace megaslide {
using namespace gemm;

namespace {

// Pieces that threads have to share, where the product is worth that.
constexpr int64_t kMinPieces = 4;

void run_pieces(Stream& stream, const SplitProblem& t) {
  const int64_t strips = round_up(t.m, 32) / 32, pairs = round_up(t.n, 32) / 32;
  int64_t down = (strips + kSplitStrips - 1) / kSplitStrips, across = (pairs + kSplitPairs - 1) / kSplitPairs;
  const double flops = 2.0 * static_cast<double>(t.m) * static_cast<double>(t.n) * static_cast<double>(t.k);
  const int64_t wanted = std::min(kMinPieces, static_cast<int64_t>(flops / kMinPieceFlops));
  if (down * across < wanted) across = std::min(pairs, (wanted + down - 1) / down);
  stream.parallel_for(across * down, 1, [&](int64_t begin, int64_t end) {
    void* scratch = onednn::thread_scratch(onednn::ScratchSlot::kTile, split_scratch_bytes());
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / across, c = i % across;
      split_piece(t, r * strips / down, (r + 1) * strips / down, c * pairs / across, (c + 1) * pairs / across, scratch);
    }
  });
}

template <MlpActivation f>
void activate(float* values, int64_t n) {
  mlp_activation_rows(values, values, n, f, DType::kF32);
}

}  // namespace

bool split_linear_serves(const Stream& stream) { return stream.target() == Backend::kCpu && tile_unit() == TileUnit::kAmx; }

int64_t split_linear_packed_bytes(int64_t n, int64_t k) { return round_up(2 * split_elements(n, k), 256); }
int64_t split_operand_bytes(int64_t m, int64_t k) { return 2 * split_elements(m, k); }

namespace cpu {

void split_linear_pack(Stream& stream, void* packed, const float* w, int64_t n, int64_t k) {
  stream.parallel_for(round_up(n, 32) / 32, 4, [&](int64_t begin, int64_t end) { split_pack(static_cast<uint16_t*>(packed), w, n, k, begin, end); });
}

void split_operand(Stream& stream, void* parts, const float* x, int64_t m, int64_t k) {
  stream.parallel_for(round_up(m, 32) / 32, 1, [&](int64_t begin, int64_t end) { split_strips(static_cast<uint16_t*>(parts), x, m, k, begin, end); });
}

void split_linear_forward(Stream& stream, float* y, const void* x_parts, const void* packed, const float* bias, int64_t m, int64_t n, int64_t k, bool accumulate) {
  run_pieces(stream, {y, x_parts, packed, bias, m, n, k, accumulate, nullptr, nullptr});
}

void split_linear_activation(Stream& stream, void* y_parts, const void* x_parts, const void* packed, const float* bias, int64_t m, int64_t n, int64_t k, MlpActivation f) {
  run_pieces(stream, {nullptr, x_parts, packed, bias, m, n, k, false, f == MlpActivation::kGelu ? &activate<MlpActivation::kGelu> : &activate<MlpActivation::kQuickGelu>, y_parts});
}

}  // namespace cpu
}  // namespace megaslide
