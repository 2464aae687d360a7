// Kernels A and B of spec dsa.md §3 on the CPU: any kernel, reach, mode, groups, batch and head size. Scores are
// interpolated, not vectors (§2): a block (A) or tile (B) of queries meets every key of its halo in one product, and the
// samples read scalars.
#include "kernels/dsa/dsa.h"

#include <algorithm>
#include <atomic>

#include "kernels/dsa/dsa_gather.h"
#include "kernels/dsa/dsa_tile.h"
#include "kernels/tile/unit.h"

namespace megaslide {
namespace {

constexpr int64_t kBandBytes = int64_t{32} << 20;
// What a thread of kernel B may work in: a quarter of a gigabyte at most for 16 threads and far beyond the caches.
constexpr int64_t kTileBytes = int64_t{16} << 20;
// Kernel B multiplies every key of the halo, in products of 16 and more; the literal definition reads 8 corners a slot
// in scalar code, at about a fiftieth of the rate.
constexpr int64_t kKeysASlot = 8 * 50;

// Kernel B pads: rows to 2, columns to 16, queries to 16, numbers of a head to 16 or 32. Beyond this factor in all, A's
// exact blocks are faster even than tile units (measured: 300x1x1 tokens at 512, heads of 16 on tile units).
constexpr int64_t kPadding = 4, kNumbersForUnit = 32;
// In fp32 vectors both kernels do the same products, B on a larger halo; it wins by what it does once for 32 queries
// instead of 16, from about this many samples on (measured at heads of 64 and 128: x0.8 at 75, x1.1 at 147).
constexpr int64_t kSlotsForVectors = 100;

std::atomic<DsaKernel> only_kernel{DsaKernel::kAuto};

// Blocks that the backward keeps the sample positions of at a time.
int64_t band_blocks(const DsaShape& s) {
  const int64_t all = s.batch * DsaBlocking(s).blocks;
  return std::clamp<int64_t>(kBandBytes / DsaBand::bytes_a_block(s), 1, std::max<int64_t>(all, 1));
}

double sum_of_bytes(const DsaShape& s, DType dtype, int tensors, int fp32_tensors) {
  const double rows = static_cast<double>(s.batch) * static_cast<double>(s.tokens());
  const double elements = rows * static_cast<double>(s.heads) * static_cast<double>(s.head_dim);
  return elements * (static_cast<double>(dtype_bytes(dtype)) * tensors + 4.0 * fp32_tensors) +
         4.0 * rows * static_cast<double>(s.heads);
}

double pair_products(const DsaShape& s) {  // batch · N · K · C
  double slots = 1;
  const int64_t length[3] = {s.frames, s.height, s.width};
  for (int a = 0; a < 3; ++a) slots *= static_cast<double>(std::min(s.kernel[a], length[a]));
  const int64_t queries = (s.query_end() - s.query_begin) * s.height * s.width;
  return static_cast<double>(s.batch) * static_cast<double>(queries) * slots * static_cast<double>(s.heads) *
         static_cast<double>(s.head_dim);
}

void check_shape(const DsaShape& s, DType dtype) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "dtype {}", dtype_name(dtype));
  MS_CHECK(s.batch >= 0 && s.frames > 0 && s.height > 0 && s.width > 0 && s.head_dim > 0, "{}x{}x{}x{}, d {}", s.batch,
           s.frames, s.height, s.width, s.head_dim);
  MS_CHECK(s.groups > 0 && s.groups <= s.heads && s.lse_row() >= s.heads, "{} groups of {} heads, rows of {}", s.groups, s.heads,
           s.lse_row());
  MS_CHECK(s.query_frames == 0 || (s.batch == 1 && s.query_begin >= 0 && s.query_end() <= s.frames), "queries of {} frames from {} on of {}x{}",
           s.query_frames, s.query_begin, s.batch, s.frames);
  MS_CHECK(dsa_offset_row(s) >= dsa_offset_count(s), "{} offsets in rows of {}", dsa_offset_count(s), dsa_offset_row(s));
  for (int a = 0; a < 3; ++a) MS_CHECK(s.kernel[a] > 0 && s.reach[a] >= 0, "kernel {}, reach {}", s.kernel[a], s.reach[a]);
}

bool on_tiles(const DsaShape& s, DType dtype) { return dsa_kernel_of(s, dtype).kernel == DsaKernel::kTile; }

// body(piece, i) for every sample, group and i below n of spans span0, span0 + spans … and bands alike.
struct BandRange {
  int64_t span0, span_step, spans, band0, band_step, bands;
};
template <class F>
void for_pieces(Stream& stream, const DsaShape& s, const BandRange& r, int64_t n, F body) {
  const int64_t spans = (r.spans - r.span0 + r.span_step - 1) / r.span_step;
  const int64_t bands = (r.bands - r.band0 + r.band_step - 1) / r.band_step;
  stream.parallel_for(s.batch * s.groups * spans * bands * n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t rest = i / n;
      const int64_t band = r.band0 + rest % bands * r.band_step;
      rest /= bands;
      const int64_t span = r.span0 + rest % spans * r.span_step;
      rest /= spans;
      body(DsaPiece{rest / s.groups, span, band, rest % s.groups}, i % n);
    }
  });
}

void tile_forward(Stream& stream, const DsaForwardArgs& args) {
  const DsaTiling t(args.shape);
  const int64_t spans = (args.shape.query_end() - args.shape.query_begin + t.forward_frames - 1) / t.forward_frames;
  for_pieces(stream, args.shape, {0, 1, spans, 0, 1, t.bands}, t.across,
             [&](const DsaPiece& piece, int64_t column) { dsa_tile_forward_piece(args, t, piece, column); });
}

void tile_backward(Stream& stream, const DsaBackwardArgs& args) {
  const DsaTiling t(args.shape);
  const DsaColours colours(args.shape, t);
  const int64_t spans = (args.shape.query_end() - args.shape.query_begin + t.backward_frames - 1) / t.backward_frames;
  for (int64_t span = 0; span < colours.spans; ++span)
    for (int64_t band = 0; band < colours.bands; ++band)
      for_pieces(stream, args.shape, {span, colours.spans, spans, band, colours.bands, t.bands}, 1,
                 [&](const DsaPiece& piece, int64_t) { dsa_tile_backward_piece(args, t, piece); });
}

}  // namespace

void limit_dsa_kernel(DsaKernel only) { only_kernel.store(only, std::memory_order_relaxed); }

DsaKernelChoice dsa_kernel_of(const DsaShape& s, DType dtype) {
  const DsaKernel only = only_kernel.load(std::memory_order_relaxed);
  if (only == DsaKernel::kGather) return {DsaKernel::kGather, "it was asked for"};
  const DsaTiling tiling(s);
  if (dsa_tile_scratch_bytes(s, tiling, dtype, true) > kTileBytes)
    return {DsaKernel::kGather, "the halo of a tile does not fit into its working memory"};
  int64_t slots = 1;
  const int64_t length[3] = {s.frames, s.height, s.width};
  for (int a = 0; a < 3; ++a) slots *= std::min(s.kernel[a], length[a]);
  if (only == DsaKernel::kTile) return {DsaKernel::kTile, ""};
  if (tiling.largest.planes * dsa_plane_keys(tiling.largest) > kKeysASlot * slots)
    return {DsaKernel::kGather, "the halo of a tile is far larger than what it samples"};
  if (tiling.padding() > kPadding) return {DsaKernel::kGather, "a tile is mostly padding"};
  if (dtype == DType::kBF16 && tile_unit() != TileUnit::kNone) {
    if (s.head_dim < kNumbersForUnit) return {DsaKernel::kGather, "heads are narrower than the tile unit"};
  } else if (slots < kSlotsForVectors) {
    return {DsaKernel::kGather, "windows of few samples gain nothing from tiles of vectors"};
  }
  return {DsaKernel::kTile, ""};
}

int64_t dsa_forward_workspace_bytes(const DsaShape&, DType) { return 0; }
int64_t dsa_backward_workspace_bytes(const DsaShape& s, DType dtype) {
  return on_tiles(s, dtype) ? 0 : band_blocks(s) * DsaBand::bytes_a_block(s);
}

Cost dsa_forward_cost(float*, float*, const void*, const void*, const void*, const float*, void*, DsaShape s,
                      DType dtype) {
  const double offsets = 4.0 * static_cast<double>(s.batch * s.tokens()) * static_cast<double>(dsa_offset_count(s));
  return {KernelClass::kAttention, 4 * pair_products(s), sum_of_bytes(s, dtype, 3, 1) + offsets};
}

Cost dsa_backward_cost(float*, float*, float*, float*, const void*, const void*, const void*, const float*,
                       const float*, const float*, const float*, void*, DsaShape s, DType dtype) {
  const double offsets = 8.0 * static_cast<double>(s.batch * s.tokens()) * static_cast<double>(dsa_offset_count(s));
  return {KernelClass::kAttention, 10 * pair_products(s), sum_of_bytes(s, dtype, 3, 5) + offsets};
}

namespace cpu {

void dsa_forward(Stream& stream, float* out, float* lse, const void* q, const void* k, const void* v,
                 const float* offsets, void*, DsaShape s, DType dtype) {
  check_shape(s, dtype);
  const DsaForwardArgs args{out, lse, q, k, v, offsets, s, dtype, DsaBlocking(s)};
  if (on_tiles(s, dtype)) return tile_forward(stream, args);
  const int64_t blocks = args.blocking.blocks, of_frame = blocks / s.frames, first = s.query_begin * of_frame;
  const int64_t all = s.batch * (s.query_end() - s.query_begin) * of_frame;
  stream.parallel_for(all * s.groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = first + i / s.groups;
      dsa_forward_piece(args, block / blocks, block % blocks, i % s.groups);
    }
  });
}

void dsa_backward(Stream& stream, float* dq, float* dk, float* dv, float* doffsets, const void* q, const void* k,
                  const void* v, const float* offsets, const float* out, const float* lse, const float* dout,
                  void* workspace, DsaShape s, DType dtype) {
  check_shape(s, dtype);
  const DsaBackwardArgs args{dq, dk, dv, doffsets, q, k, v, offsets, out, lse, dout, s, dtype, DsaBlocking(s)};
  const int64_t rows = s.batch * s.tokens(), width = s.heads * s.head_dim;
  stream.parallel_for(rows, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * s.row(); i < end * s.row(); i += s.row()) {
      std::fill(dk + i, dk + i + width, 0.0f);
      std::fill(dv + i, dv + i + width, 0.0f);
    }
    for (int64_t i = begin; i < end; ++i) {
      float* offsets_of = doffsets + i * dsa_offset_row(s);
      std::fill(offsets_of, offsets_of + dsa_offset_count(s), 0.0f);
    }
  });
  if (on_tiles(s, dtype)) return tile_backward(stream, args);
  const int64_t blocks = args.blocking.blocks, of_frame = blocks / s.frames, step = band_blocks(s);
  const int64_t all = s.batch * s.query_end() * of_frame;
  DsaBand band(s);
  band.memory = static_cast<std::byte*>(workspace);
  for (int64_t first = s.query_begin * of_frame; first < all; first += step) {
    const int64_t last = std::min(all, first + step);
    band.first = first;
    stream.parallel_for((last - first) * s.groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dsa_place_piece(args, band, first + i / s.groups, i % s.groups);
    });
    // One piece a sample and head: it alone writes their dk and dv, block after block.
    const int64_t batch0 = first / blocks, batches = (last - 1) / blocks + 1 - batch0;
    stream.parallel_for(batches * s.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = batch0 + i / s.heads;
        dsa_backward_piece(args, band, b, i % s.heads, std::max(first, b * blocks) - b * blocks,
                           std::min(last, (b + 1) * blocks) - b * blocks);
      }
    });
    stream.parallel_for((last - first) * s.groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dsa_reduce_piece(args, band, first + i / s.groups, i % s.groups);
    });
  }
}

}  // namespace cpu
}  // namespace megaslide
