// Kernel B of DSA on the CPU against fp64 and against kernel A: every mode, element type and unit, ragged tiles among
// poisoned memory, and what must hold bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "attention_check/run_kernels.h"
#include "kernels/attention/scratch.h"
#include "kernels/dsa/dsa_tile.h"
#include "tests/attention/random_case.h"
#include "tests/dsa/dsa_spec.h"
#include "tests/dsa/one_kernel.h"
#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using testing_support::expect_kernels_agree;
using testing_support::fill_inputs;
using testing_support::kModes;
using testing_support::OneDsaKernel;
using testing_support::OneTileUnit;

using Spec = testing_support::DsaSpec<3, 11, 13>;
StoredCase make_case(const Spec& s) { return testing_support::make_dsa_case(s); }

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

// body once a unit of this processor, the vector code that stands in for them included.
template <class F>
void for_each_unit(F body) {
  for (const TileUnit unit : {TileUnit::kNone, TileUnit::kAvx512, TileUnit::kAmx}) {
    const OneTileUnit limit(unit);
    if (tile_unit() != unit) continue;
    SCOPED_TRACE(fmt::format("unit {}", static_cast<int>(unit)));
    body();
  }
}

// Memory of NaN with a tensor in its middle; wrong where the margins have changed.
class Guarded {
 public:
  Guarded(const std::vector<float>& values, DType dtype) : Guarded(static_cast<int64_t>(values.size()), dtype) {
    convert_from_f32(data(), dtype, values.data(), n_);
  }
  Guarded(int64_t n, DType dtype)
      : n_(n), size_(dtype_bytes(dtype)), bytes_(static_cast<size_t>(n * size_ + 2 * kMargin), std::byte{0xff}) {}
  void* data() { return bytes_.data() + kMargin; }
  float* f32() { return reinterpret_cast<float*>(data()); }
  bool intact() const {
    const auto blank = [](std::byte b) { return b == std::byte{0xff}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kMargin, blank) &&
           std::all_of(bytes_.end() - kMargin, bytes_.end(), blank);
  }
  std::vector<double> values() { return {f32(), f32() + n_}; }

 private:
  static constexpr int64_t kMargin = 4096;
  int64_t n_, size_;
  std::vector<std::byte> bytes_;
};

// Forward and `repeats` backward passes on one thread whose working memory holds NaN.
NamedResults run_poisoned(const StoredCase& c, DType dtype, int repeats = 1) {
  const OneDsaKernel forced(DsaKernel::kTile);
  const DsaShape s = c.dsa_shape();
  EXPECT_EQ(dsa_kernel_of(s, dtype).kernel, DsaKernel::kTile);
  Guarded q(c.at("q"), dtype), k(c.at("k"), dtype), v(c.at("v"), dtype), o(c.at("offsets"), DType::kF32);
  Guarded dout(c.at("dout"), DType::kF32);
  const auto n = static_cast<int64_t>(c.at("q").size());
  Guarded out(n, DType::kF32), lse(n / c.head_dim, DType::kF32), dq(n, DType::kF32), dk(n, DType::kF32), dv(n, DType::kF32);
  Guarded doffsets(static_cast<int64_t>(c.at("offsets").size()), DType::kF32);
  InlineStream stream(1);
  const int64_t bytes = dsa_tile_scratch_bytes(s, DsaTiling(s), dtype, true);
  std::memset(ThreadScratch::get(bytes), 0xff, static_cast<size_t>(bytes));
  dsa_forward(stream, out.f32(), lse.f32(), q.data(), k.data(), v.data(), o.f32(), nullptr, s, dtype);
  for (int i = 0; i < repeats; ++i) {
    std::memset(ThreadScratch::get(bytes), 0xff, static_cast<size_t>(bytes));
    dsa_backward(stream, dq.f32(), dk.f32(), dv.f32(), doffsets.f32(), q.data(), k.data(), v.data(), o.f32(), out.f32(),
                 lse.f32(), dout.f32(), nullptr, s, dtype);
  }
  for (const Guarded* g : {&q, &k, &v, &o, &dout, &out, &lse, &dq, &dk, &dv, &doffsets}) EXPECT_TRUE(g->intact());
  return {{"out", out.values()}, {"lse", lse.values()}, {"dq", dq.values()},
          {"dk", dk.values()},   {"dv", dv.values()},   {"doffsets", doffsets.values()}};
}

NamedResults run(const StoredCase& c, DType dtype, int threads = 2, DsaKernel kernel = DsaKernel::kTile) {
  const OneDsaKernel forced(kernel);
  InlineStream stream(threads);
  return tested_kernels(CaseKind::kDsa).front().run(c, dtype, stream);
}

// fp32: the same numbers added in another order. bf16: softmax weights and dout rounded to 2⁻⁹ of themselves, in
// products that average over dozens of them; a rounding of each factor, and that much again for kernel A's own.
double difference_allowed(DType dtype) { return dtype == DType::kF32 ? 64 * 0x1p-24 : 0x1p-7; }

void expect_agrees_with_gather(const StoredCase& c, const std::string& what) {
  const NamedResults gather = run(c, DType::kF32, 2, DsaKernel::kGather);
  for_each_unit([&] {
    for (const DType dtype : kTypes)
      for (const auto& [name, values] : run_poisoned(c, dtype))
        EXPECT_LT(relative_error(values, gather.at(name)), difference_allowed(dtype)) << what << " " << name << " " << dtype_name(dtype);
  });
}

TEST(DsaTile, modes_on_every_unit) {
  for (const DsaOffsetMode mode : kModes) {
    expect_kernels_agree(make_case({.grid = {2, 7, 9}, .kernel = {3, 5, 5}, .mode = mode}), "mode");
    expect_agrees_with_gather(make_case({.kernel = {3, 5, 5}, .mode = mode}), "mode");
  }
}

TEST(DsaTile, every_instruction_set) {
  const StoredCase c = make_case({.heads = 3, .head_dim = 20, .groups = 1});
  testing_support::for_each_target([&] { expect_agrees_with_gather(c, "target"); });
}

// Grids around the tile of kernel 7 and reach 2, and halos of one more column than a vector.
TEST(DsaTile, ragged_tiles_among_poisoned_memory) {
  for (const int64_t h : {4, 5, 6, 16})
    for (const int64_t w : {5, 6, 7, 15, 16, 17, 18})
      expect_agrees_with_gather(make_case({.grid = {2, h, w}, .kernel = {2, 7, 7}, .reach = {0, 2, 2}, .heads = 1, .groups = 1}),
                                fmt::format("{} x {}", h, w));
}

TEST(DsaTile, windows_larger_than_the_grid) {
  for (const std::array<int64_t, 3>& grid : {std::array<int64_t, 3>{1, 1, 1}, {1, 1, 7}, {1, 6, 1}, {5, 1, 1}, {2, 3, 4}, {1, 40, 2}})
    for (const DsaOffsetMode mode : kModes) {
      const StoredCase c = make_case({.grid = grid, .kernel = {3, 5, 5}, .mode = mode});
      expect_kernels_agree(c, fmt::format("{} {} {}", grid[0], grid[1], grid[2]));
    }
}

TEST(DsaTile, reaches_and_idle_axes) {
  for (const std::array<double, 3>& reach : {std::array<double, 3>{0, 0, 0}, {0, 2, 0}, {0.5, 0, 3.25}, {2, 1, 0}, {1, 9, 1}})
    expect_agrees_with_gather(make_case({.grid = {4, 7, 9}, .kernel = {2, 3, 4}, .reach = reach}), fmt::format("{} {} {}", reach[0], reach[1], reach[2]));
}

TEST(DsaTile, head_sizes_and_groups) {
  for (const int64_t d : {1, 30, 64, 71, 128})
    expect_kernels_agree(make_case({.grid = {2, 5, 7}, .heads = 3, .head_dim = d, .groups = 2, .batch = 2}), fmt::format("d {}", d));
}

TEST(DsaTile, shots) {
  for (const DsaOffsetMode mode : kModes) {
    StoredCase c = make_case({.grid = {7, 3, 4}, .kernel = {3, 3, 3}, .reach = {2, 1, 1}, .mode = mode});
    c.t_lo = {0, 0, 2, 2, 2, 2, 6}, c.t_hi = {1, 1, 5, 5, 5, 5, 6};
    expect_kernels_agree(c, "shots");
  }
}

TEST(DsaTile, large_logits) {
  for (const double spread : {1, 4, 16}) {
    StoredCase c = make_case({.grid = {2, 6, 9}, .head_dim = 32});
    fill_inputs(c, spread);
    expect_kernels_agree(c, fmt::format("q × {}", spread));
  }
}

TEST(DsaTile, offsets_along_one_axis) {
  for (size_t axis = 0; axis < 3; ++axis) {
    StoredCase c = make_case({.grid = {4, 5, 7}});
    auto& o = c.tensors["offsets"];
    for (size_t i = 0; i < o.size(); ++i)
      if (i % 3 != axis) o[i] = 0;
    expect_kernels_agree(c, fmt::format("axis {}", axis));
  }
}

TEST(DsaTile, wild_offsets_saturate_and_nan_stays_with_its_query) {
  StoredCase c = make_case({.groups = 1});
  auto& o = c.tensors["offsets"];
  const float wild[] = {1e20f, -1e20f, 3.4e38f, -3.4e38f, INFINITY, -INFINITY};
  for (size_t i = 0; i < o.size(); ++i) o[i] = wild[i * 7 % 6];
  expect_kernels_agree(c, "saturated");
  const int64_t count = dsa_offset_count(c.dsa_shape()), query = 137, row = c.heads * c.head_dim;
  o[static_cast<size_t>(query * count + 5)] = NAN;
  for_each_unit([&] {
    const NamedResults r = run_poisoned(c, DType::kBF16);
    for (const char* name : {"out", "dq"})
      for (int64_t i = 0; i < c.tokens() * row; ++i)
        EXPECT_EQ(std::isnan(r.at(name)[static_cast<size_t>(i)]), i / row == query) << name << " " << i;
  });
}

// A spoilt key is read by those who sample it and by nobody else, though it lies in the halo of its neighbours' tiles.
TEST(DsaTile, spoilt_keys_in_a_halo) {
  for (const float spoilt : {NAN, INFINITY, 3e38f})
    for_each_unit([&] {
      StoredCase c = make_case({.grid = {1, 16, 17}, .kernel = {1, 3, 3}, .reach = {0, 2, 2}, .groups = 1});
      std::fill(c.tensors["offsets"].begin(), c.tensors["offsets"].end(), 0.0f);  // every upper corner has weight 0
      const NamedResults clean = run_poisoned(c, DType::kBF16);
      const int64_t row = c.heads * c.head_dim;
      for (const char* name : {"k", "v"}) std::fill_n(c.tensors[name].begin() + (8 * 17 + 8) * row, row, spoilt);
      const NamedResults holed = run_poisoned(c, DType::kBF16);
      for (int64_t i = 0; i < c.tokens() * row; ++i) {
        const int64_t h = i / row / 17, w = i / row % 17;
        const bool near = std::abs(h - 8) <= 1 && std::abs(w - 8) <= 1, reached = std::abs(h - 8) <= 2 && std::abs(w - 8) <= 2;
        for (const char* name : {"out", "dq", "dk", "dv"}) {
          if (*name == 'd' && name[1] != 'q' ? reached : near) continue;
          // A query beside the spoilt key is computed anew without rounding its weights to bf16.
          EXPECT_NEAR(holed.at(name)[static_cast<size_t>(i)], clean.at(name)[static_cast<size_t>(i)], 0x1p-5) << name << " " << h << " " << w;
        }
        if (near && std::isnan(spoilt)) {
          EXPECT_TRUE(std::isnan(holed.at("out")[static_cast<size_t>(i)])) << h << " " << w;
        }
      }
    });
}

TEST(DsaTile, second_shot_leaves_the_first_bit_identical) {
  for (const DType dtype : kTypes)
    for (const float poison : {5.0f, NAN}) {
      StoredCase c = make_case({.grid = {6, 4, 5}, .reach = {2, 2, 2}});
      c.t_lo = {0, 0, 0, 3, 3, 3}, c.t_hi = {2, 2, 2, 5, 5, 5};
      const NamedResults before = run(c, dtype);
      for (const char* name : {"q", "k", "v", "dout", "offsets"}) {
        auto& x = c.tensors[name];
        std::fill(x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end(), poison);
      }
      for (const auto& [name, values] : run(c, dtype)) {
        const auto& old = before.at(name);
        EXPECT_TRUE(std::equal(old.begin(), old.begin() + static_cast<std::ptrdiff_t>(old.size() / 2), values.begin())) << name;
      }
    }
}

TEST(DsaTile, batch_of_two_is_two_batches_of_one) {
  const StoredCase both = make_case({.batch = 2});
  StoredCase one = both;
  one.batch = 1;
  const NamedResults whole = run(both, DType::kBF16);
  for (const size_t i : {0u, 1u}) {
    for (auto& [name, values] : one.tensors) {
      const auto& from = both.at(name);
      const auto n = static_cast<std::ptrdiff_t>(from.size() / 2);
      values.assign(from.begin() + static_cast<std::ptrdiff_t>(i) * n, from.begin() + static_cast<std::ptrdiff_t>(i + 1) * n);
    }
    for (const auto& [name, values] : run(one, DType::kBF16)) {
      const auto& all = whole.at(name);
      EXPECT_TRUE(std::equal(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(i * values.size()))) << name;
    }
  }
}

TEST(DsaTile, same_bits_for_any_thread_count_and_on_repeat) {
  const StoredCase c = make_case({.grid = {5, 11, 10}, .heads = 3, .groups = 3});
  for_each_unit([&] {
    for (const DType dtype : kTypes) {
      const NamedResults first = run(c, dtype, 1);
      for (int threads = 1; threads <= 4; ++threads) EXPECT_EQ(run(c, dtype, threads), first) << threads;
      EXPECT_EQ(run_poisoned(c, dtype, 2), first) << "backward twice";
    }
  });
}

TEST(DsaTile, without_a_unit_bf16_is_widened) {
  const OneTileUnit none(TileUnit::kNone);
  const StoredCase c = make_case({});  // inputs are exact in bf16
  EXPECT_EQ(run(c, DType::kBF16), run(c, DType::kF32));
}

DsaShape shape_of(const std::array<int64_t, 3>& grid, const std::array<int64_t, 3>& kernel, float reach) {
  DsaShape s;
  s.frames = grid[0], s.height = grid[1], s.width = grid[2], s.head_dim = 16;
  for (int a = 0; a < 3; ++a) s.kernel[a] = kernel[static_cast<size_t>(a)], s.reach[a] = reach;
  return s;
}

TEST(DsaTile, tile_of_the_usual_kernel_fills_vectors) {
  DsaShape s = shape_of({21, 30, 52}, {3, 7, 7}, 2);
  s.reach[0] = 1;
  const DsaTiling t(s);
  EXPECT_EQ(t.tile_h, 5);
  EXPECT_EQ(t.tile_w, 6);
  EXPECT_EQ(t.largest.planes, 5);
  EXPECT_EQ(t.largest.columns, 16);
}

TEST(DsaTile, tiles_cover_every_token_once_and_colours_never_meet) {
  for (const auto& grid : {std::array<int64_t, 3>{2, 5, 9}, {1, 1, 40}, {9, 40, 1}, {1, 16, 16}, {1, 1, 1}, {6, 33, 7}})
    for (const float reach : {0.0f, 1.5f, 4.0f}) {
      const DsaShape s = shape_of(grid, {3, 3, 3}, reach);
      const DsaTiling tiling(s);
      const DsaColours colours(s, tiling);
      std::vector<int> seen(static_cast<size_t>(s.tokens()));
      // Per colour, which piece touches a key.
      std::vector<std::vector<int64_t>> owner(static_cast<size_t>(colours.spans * colours.bands), std::vector<int64_t>(seen.size(), -1));
      for (int64_t f = 0; f < s.frames; ++f)
        for (int64_t b = 0; b < tiling.bands; ++b)
          for (int64_t i = 0; i < tiling.across; ++i) {
            const DsaTile t(s, tiling, f, b, i);
            for (int64_t q = 0; q < t.active; ++q) ++seen[static_cast<size_t>(t.token[q])];
            ASSERT_LE(t.halo.planes * dsa_plane_keys(t.halo), tiling.largest.planes * dsa_plane_keys(tiling.largest));
            ASSERT_LE(t.halo.rows, tiling.largest.rows);
            ASSERT_LE(t.halo.columns, tiling.largest.columns);
            const int64_t span = f / tiling.backward_frames, piece = span * tiling.bands + b;
            auto& of = owner[static_cast<size_t>(span % colours.spans * colours.bands + b % colours.bands)];
            for (int64_t p = 0; p < t.halo.planes; ++p)
              for (int64_t r = 0; r < t.halo.rows_there; ++r)
                for (int64_t c = 0; c < t.halo.columns_there; ++c) {
                  const int64_t key = dsa_row_token(t.halo, p, r) + c;
                  ASSERT_LT(key, s.tokens());
                  int64_t& who = of[static_cast<size_t>(key)];
                  ASSERT_TRUE(who == -1 || who == piece);
                  who = piece;
                }
          }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), s.tokens());
    }
}

TEST(DsaTile, which_kernel_and_why) {
  DsaShape s = shape_of({21, 30, 52}, {3, 7, 7}, 2);
  s.head_dim = 64;
  for (const DType dtype : kTypes) {
    EXPECT_EQ(dsa_kernel_of(s, dtype).kernel, DsaKernel::kTile) << dsa_kernel_of(s, dtype).reason;
    EXPECT_EQ(dsa_backward_workspace_bytes(s, dtype), 0);
  }
  const auto why = [](const DsaShape& shape, DType dtype) {
    const DsaKernelChoice choice = dsa_kernel_of(shape, dtype);
    return choice.kernel == DsaKernel::kGather ? std::string(choice.reason) : "tile";
  };
  DsaShape small = shape_of({21, 30, 52}, {3, 3, 3}, 2);
  EXPECT_EQ(why(small, DType::kF32), "windows of few samples gain nothing from tiles of vectors");
  for_each_unit([&] {
    small.head_dim = 16;
    if (tile_unit() != TileUnit::kNone) {
      EXPECT_EQ(why(small, DType::kBF16), "heads are narrower than the tile unit");
    }
    small.head_dim = 64;
    EXPECT_EQ(why(small, DType::kBF16), tile_unit() == TileUnit::kNone ? why(small, DType::kF32) : "tile");
  });
  EXPECT_EQ(why(shape_of({300, 1, 1}, {5, 1, 1}, 2), DType::kF32), "a tile is mostly padding");
  const DsaShape sparse = shape_of({9, 12, 12}, {1, 1, 1}, 40), huge = shape_of({64, 64, 64}, {64, 64, 64}, 1);
  EXPECT_EQ(why(sparse, DType::kF32), "the halo of a tile is far larger than what it samples");
  EXPECT_EQ(why(huge, DType::kF32), "the halo of a tile does not fit into its working memory");
  {
    const OneDsaKernel forced(DsaKernel::kTile);
    EXPECT_EQ(why(sparse, DType::kF32), "tile");
    EXPECT_EQ(why(huge, DType::kF32), "the halo of a tile does not fit into its working memory");
  }
  const OneDsaKernel forced(DsaKernel::kGather);
  EXPECT_EQ(why(s, DType::kBF16), "it was asked for");
  EXPECT_GT(dsa_backward_workspace_bytes(s, DType::kBF16), 0);
}

// The stored cases are small and take kernel A by themselves.
void expect_stored_cases_pass(const std::filesystem::path& folder, int at_least) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const StoredCase c = load_stored_case(entry.path().string(), case_json_path(entry.path().string()));
    if (c.kind != CaseKind::kDsa) continue;
    ++cases;
    const OneDsaKernel forced(DsaKernel::kTile);
    InlineStream stream(2);
    for (const KernelCheck& check : check_case(c, stream)) EXPECT_TRUE(check.ok) << to_json_line(check);
  }
  EXPECT_GE(cases, at_least);
}

TEST(DsaTile, stored_cases) { expect_stored_cases_pass(MEGASLIDE_TEST_DATA "/dsa", 17); }

TEST(DsaTile, WholeGoldenFolder) {
  const char* golden = std::getenv("MEGASLIDE_GOLDEN");
  if (golden == nullptr) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
  expect_stored_cases_pass(std::string(golden) + "/dsa", 22);
}

}  // namespace
}  // namespace megaslide
