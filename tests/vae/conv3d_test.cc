// The convolution of frames against its plain twin, on every path of this machine.
#include "kernels/conv3d/conv3d.h"
#include "kernels/conv3d/split.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/tile/unit.h"
#include "tests/support/elementwise.h"
#include "tests/vae/vae_files.h"

namespace megaslide {
namespace {
using namespace testing_support;

// A frame in memory with random cells and a border of zeros.
struct Frame {
  explicit Frame(const FrameLayout& l) : layout(l), memory(l.dtype, {l.elements()}) {}
  Frame(const FrameLayout& l, uint64_t series, double deviation = 1) : Frame(l) {
    const HostTensor v = random_tensor({l.height, l.width, l.channels}, series, deviation);
    for (int64_t y = 0; y < l.height; ++y)
      for (int64_t x = 0; x < l.width; ++x)
        for (int64_t c = 0; c < l.channels; ++c) set(l.cell(y, x) + c, v.f32()[(y * l.width + x) * l.channels + c]);
  }
  void set(int64_t i, float v) {
    if (layout.dtype == DType::kBF16)
      reinterpret_cast<bf16*>(memory.data())[i] = to_bf16(v);
    else
      memory.f32()[i] = v;
  }
  float get(int64_t i) const {
    return layout.dtype == DType::kBF16 ? to_float(reinterpret_cast<const bf16*>(memory.data())[i]) : memory.f32()[i];
  }
  std::vector<float> values() const {
    std::vector<float> v;
    for (int64_t y = 0; y < layout.height; ++y)
      for (int64_t x = 0; x < layout.width; ++x)
        for (int64_t c = 0; c < layout.channels; ++c) v.push_back(get(layout.cell(y, x) + c));
    return v;
  }
  bool same(const Frame& o) const {
    return std::memcmp(memory.data(), o.memory.data(), static_cast<size_t>(memory.bytes())) == 0;
  }
  // Everything outside the cells, and channels beyond the layout's, is zero.
  bool clean() const {
    Frame inside(layout);
    for (int64_t y = 0; y < layout.height; ++y)
      for (int64_t x = 0; x < layout.width; ++x)
        for (int64_t c = 0; c < layout.channels; ++c) inside.set(layout.cell(y, x) + c, get(layout.cell(y, x) + c));
    return same(inside);
  }

  FrameLayout layout;
  HostTensor memory;
};

struct Case {
  ConvShape shape;
  int64_t rows, columns;  // of the input
  int64_t stride = 1;
  int64_t step = 1;  // of the output
  bool residual = true, norm = true, silu = true, slope = false;
};

std::vector<float> padded(int64_t n, uint64_t series, double mean) {
  std::vector<float> v = normals(n, series, 0.3, mean);
  v.resize(static_cast<size_t>((n + kConvPanel - 1) / kConvPanel * kConvPanel));
  return v;
}

// A call with its own memory.
struct ConvSetup {
  ConvSetup(const Case& c, DType dtype)
      : test(c),
        in{c.rows, c.columns, c.shape.in, dtype, std::max<int64_t>(1, std::max(c.shape.kh, c.shape.kw) / 2)},
        out{c.rows / c.stride * c.step, c.columns / c.stride * c.step, c.shape.out, dtype},
        weights(normals(c.shape.weights(), 1, 1 / std::sqrt(static_cast<double>(c.shape.in * c.shape.taps())))),
        bias(padded(c.shape.out, 2, 0)),
        gamma(padded(c.shape.out, 3, 1)),
        slope(padded(c.shape.out, 6, 0.1)),
        residual(out, 4),
        residual2(out, 5) {
    for (int64_t t = 0; t < c.shape.kt; ++t) frames.emplace_back(in, static_cast<uint64_t>(10 + t));
    if (dtype == DType::kBF16)
      for (float& w : weights) w = to_float(to_bf16(w));
  }
  FrameConv call(Frame* raw, Frame* normed) const {
    FrameConv f;
    f.shape = test.shape;
    f.in = in;
    for (size_t t = 0; t < frames.size(); ++t) f.frames[t] = frames[t].memory.data();
    f.stride = test.stride;
    const bool centred = test.stride == 1 && test.shape.taps() > 4;
    f.dy = centred ? -(test.shape.kh / 2) : 0;
    f.dx = centred ? -(test.shape.kw / 2) : 0;
    f.rows = test.rows / test.stride;
    f.columns = test.columns / test.stride;
    f.finish.out = out;
    f.finish.step = test.step;
    f.finish.y = test.step - 1;
    f.finish.bias = bias.data();
    if (test.residual) f.finish.residual = residual.memory.data();
    if (test.residual) f.finish.residual2 = residual2.memory.data();
    if (test.slope) f.finish.slope = slope.data();
    f.finish.raw = raw->memory.data();
    if (test.norm) f.finish.normed = normed->memory.data();
    f.finish.gamma = gamma.data();
    f.finish.silu = test.silu;
    return f;
  }
  HostTensor packed(Stream& stream) const {
    HostTensor p(DType::kF32, {conv_packed_bytes(test.shape, in.dtype) / 4});
    conv_pack(stream, p.data(), weights.data(), test.shape, in.dtype);
    return p;
  }

  Case test;
  FrameLayout in, out;
  std::vector<float> weights, bias, gamma, slope;
  Frame residual, residual2;
  std::vector<Frame> frames;
};

const std::vector<Case> kCases = {
    {.shape = {3, 96, 3, 3, 3}, .rows = 5, .columns = 37},
    {.shape = {96, 3, 3, 3, 3}, .rows = 4, .columns = 20, .residual = false, .norm = false},
    {.shape = {40, 72, 3, 3, 3}, .rows = 18, .columns = 18, .slope = true},
    {.shape = {64, 32, 1, 3, 3}, .rows = 8, .columns = 34, .stride = 2},
    {.shape = {24, 48, 3, 1, 1}, .rows = 3, .columns = 1},
    {.shape = {48, 160, 1, 1, 1}, .rows = 7, .columns = 15, .silu = false},
    {.shape = {32, 16, 1, 2, 2}, .rows = 6, .columns = 19, .step = 2},
    {.shape = {520, 33, 3, 3, 3}, .rows = 2, .columns = 140, .residual = false},  // runs longer than a cache's share
    {.shape = {200, 50, 2, 1, 5}, .rows = 5, .columns = 75, .norm = false, .slope = true},
    {.shape = {72, 48, 2, 5, 1}, .rows = 20, .columns = 21, .norm = false},
    {.shape = {12, 64, 1, 4, 4}, .rows = 11, .columns = 23, .residual = false, .norm = false},
    {.shape = {14, 20, 1, 7, 1}, .rows = 8, .columns = 9, .norm = false},
    {.shape = {9, 24, 1, 2, 2}, .rows = 10, .columns = 38, .stride = 2},
    {.shape = {64, 96, 1, 1, 1}, .rows = 9, .columns = 50, .stride = 2, .residual = false, .norm = false},
    {.shape = {600, 40, 3, 3, 3}, .rows = 2, .columns = 40, .residual = false, .norm = false},
};

void check(const Case& c, DType dtype) {
  SCOPED_TRACE(fmt::format("{}->{} {}x{}x{} {}", c.shape.in, c.shape.out, c.shape.kt, c.shape.kh, c.shape.kw,
                           dtype_name(dtype)));
  const ConvSetup s(c, dtype);
  InlineStream stream(2);
  Frame raw(s.out), normed(s.out), want_raw(s.out), want_normed(s.out);
  FrameConv f = s.call(&raw, &normed);
  const HostTensor packed = s.packed(stream);
  f.packed = packed.data();
  frame_conv(stream, f);
  reference::frame_conv(s.call(&want_raw, &want_normed), s.weights.data());
  // fp32: n products of random signs. Partial sums grow as √k and each is rounded to 2^-24, 0.58 of that rms: 0.58 · 2^-24 · √(n/2) of the
  // result, and a few roundings after it; a part of a number left out would give 2e-6. bf16: the result's rounding, 2^-9 at most and 0.58
  // of that rms, then the norm's on top.
  const double limit = dtype == DType::kBF16 ? 1.5e-3 : 3e-7 + 2.5e-8 * std::sqrt(static_cast<double>(c.shape.in * c.shape.taps()));
  EXPECT_LE(relative_error(raw.values(), want_raw.values()), limit);
  if (c.norm) {
    EXPECT_LE(relative_error(normed.values(), want_normed.values()), limit);
  }
  EXPECT_TRUE(raw.clean());
  EXPECT_TRUE(normed.clean());
}

TEST(FrameConv, EqualsItsPlainTwinInFp32) {
  for (const Case& c : kCases) check(c, DType::kF32);
}

// Without AMX, which would take the products.
TEST(FrameConv, EqualsItsPlainTwinInFp32OnOtherUnits) {
  limit_tile_unit(TileUnit::kAvx512);
  for_each_target([] {
    for (const Case& c : kCases) check(c, DType::kF32);
  });
  limit_tile_unit(TileUnit::kAmx);
}

TEST(FrameConv, EqualsItsPlainTwinInBf16) {
  for (const Case& c : kCases) check(c, DType::kBF16);
}

// The code of lesser processors.
TEST(FrameConv, EqualsItsPlainTwinInBf16OnOtherUnits) {
  if (tile_unit() >= TileUnit::kAvx512) {
    limit_tile_unit(TileUnit::kAvx512);
    for (const Case& c : kCases) check(c, DType::kBF16);
  }
  limit_tile_unit(TileUnit::kNone);
  for_each_target([] {
    for (const Case& c : kCases) check(c, DType::kBF16);
  });
  limit_tile_unit(TileUnit::kAmx);
}

TEST(FrameConv, ThreadsDoNotChangeABit) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Case& c : kCases) {
      const ConvSetup s(c, dtype);
      InlineStream one(1), three(3);
      const HostTensor packed = s.packed(one), packed3 = s.packed(three);
      EXPECT_EQ(std::memcmp(packed.data(), packed3.data(), static_cast<size_t>(packed.bytes())), 0);
      Frame raw1(s.out), normed1(s.out), raw3(s.out), normed3(s.out);
      FrameConv f = s.call(&raw1, &normed1), g = s.call(&raw3, &normed3);
      f.packed = g.packed = packed.data();
      frame_conv(one, f);
      frame_conv(three, g);
      EXPECT_TRUE(raw1.same(raw3) && normed1.same(normed3));
    }
}

TEST(FrameConv, AbsentFramesAreZeros) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ConvSetup s(kCases[2], dtype);
    InlineStream stream(2);
    const HostTensor packed = s.packed(stream);
    for (size_t t = 0; t < 2; ++t) s.frames[t] = Frame(s.in);
    Frame raw(s.out), normed(s.out), raw0(s.out), normed0(s.out);
    FrameConv f = s.call(&raw, &normed), g = s.call(&raw0, &normed0);
    f.packed = g.packed = packed.data();
    g.frames[0] = g.frames[1] = nullptr;
    frame_conv(stream, f);
    frame_conv(stream, g);
    EXPECT_TRUE(raw.same(raw0) && normed.same(normed0));
  }
}

// The same cells somewhere else in a frame of another size give the same bits: this is what makes a stream, a clip and
// a crop agree.
TEST(FrameConv, PlacesDoNotChangeABit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case large{.shape = {40, 72, 3, 3, 3}, .rows = 23, .columns = 61, .residual = false},
        small{.shape = large.shape, .rows = 9, .columns = 17, .residual = false};
    const ConvSetup s(large, dtype);
    ConvSetup part(small, dtype);
    constexpr int64_t kY = 5, kX = 13;
    for (size_t t = 0; t < 3; ++t)
      for (int64_t y = -1; y <= small.rows; ++y)  // the border too
        for (int64_t x = -1; x <= small.columns; ++x)
          for (int64_t c = 0; c < 40; ++c)
            part.frames[t].set(part.in.cell(y, x) + c, s.frames[t].get(s.in.cell(y + kY, x + kX) + c));
    InlineStream stream(2);
    const HostTensor packed = s.packed(stream);
    Frame raw(s.out), normed(s.out), raw_part(part.out), normed_part(part.out);
    FrameConv f = s.call(&raw, &normed), g = part.call(&raw_part, &normed_part);
    f.packed = g.packed = packed.data();
    frame_conv(stream, f);
    frame_conv(stream, g);
    for (int64_t y = 0; y < small.rows; ++y)
      for (int64_t x = 0; x < small.columns; ++x)
        for (int64_t c = 0; c < 72; ++c) {
          ASSERT_EQ(raw_part.get(part.out.cell(y, x) + c), raw.get(s.out.cell(y + kY, x + kX) + c));
          ASSERT_EQ(normed_part.get(part.out.cell(y, x) + c), normed.get(s.out.cell(y + kY, x + kX) + c));
        }
  }
}

TEST(FrameConv, NotANumberReachesItsNeighboursAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ConvSetup s({.shape = {8, 20, 3, 3, 3}, .rows = 6, .columns = 21, .residual = false}, dtype);
    s.frames[2].set(s.in.cell(3, 0) + 5, NAN);
    InlineStream stream(2);
    const HostTensor packed = s.packed(stream);
    Frame raw(s.out), normed(s.out);
    FrameConv f = s.call(&raw, &normed);
    f.packed = packed.data();
    frame_conv(stream, f);
    for (int64_t y = 0; y < 6; ++y)
      for (int64_t x = 0; x < 21; ++x) {
        const bool near = std::abs(y - 3) <= 1 && x <= 1;
        EXPECT_EQ(std::isnan(raw.get(s.out.cell(y, x))), near) << y << " " << x;
        EXPECT_EQ(std::isnan(normed.get(s.out.cell(y, x))), near) << y << " " << x;
      }
  }
}

// Tiles of 16 cells read past a row's end, never past the frame's slack: a page without access follows it here.
TEST(FrameConv, ReadsStayInTheFrame) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Case& c : std::vector<Case>{{.shape = {32, 32, 1, 3, 3}, .rows = 2, .columns = 2, .stride = 2},
                                           {.shape = {64, 32, 1, 3, 3}, .rows = 4, .columns = 34, .stride = 2},
                                           {.shape = {32, 32, 3, 3, 3}, .rows = 3, .columns = 1},
                                           {.shape = {32, 32, 1, 1, 1}, .rows = 3, .columns = 17}}) {
      ConvSetup s(c, dtype);
      if (c.shape.kh == 1) s.in.border = 0;
      const auto bytes = static_cast<size_t>(s.in.bytes()), mapped = (bytes + page - 1) / page * page;
      void* at = mmap(nullptr, mapped + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(at, MAP_FAILED);
      ASSERT_EQ(mprotect(static_cast<std::byte*>(at) + mapped, page, PROT_NONE), 0);
      InlineStream stream(1);
      Frame raw(s.out), normed(s.out);
      FrameConv f = s.call(&raw, &normed);
      for (int64_t t = 0; t < c.shape.kt; ++t) f.frames[t] = static_cast<std::byte*>(at) + mapped - bytes;
      for (const TileUnit unit : {TileUnit::kNone, TileUnit::kAvx512, TileUnit::kAmx}) {
        limit_tile_unit(unit);
        const HostTensor packed = s.packed(stream);  // the layout is the unit's
        f.packed = packed.data();
        frame_conv(stream, f);
      }
      munmap(at, mapped + page);
    }
}

TEST(FrameConv, FoldedPhasesAreUpsamplingAndConvolution) {
  const Case c{.shape = {24, 16, 1, 3, 3}, .rows = 10, .columns = 14, .residual = false};
  const ConvSetup s(c, DType::kF32);
  // The input is each second cell of the frame that is upsampled to c's size.
  FrameLayout low = s.in;
  low.height /= 2;
  low.width /= 2;
  const Frame small(low, 77);
  ConvSetup large(c, DType::kF32);
  for (int64_t y = 0; y < 10; ++y)
    for (int64_t x = 0; x < 14; ++x)
      for (int64_t k = 0; k < 24; ++k)
        large.frames[0].set(large.in.cell(y, x) + k, small.get(low.cell(y / 2, x / 2) + k));
  Frame want(s.out), want_normed(s.out), got(s.out), got_normed(s.out);
  reference::frame_conv(large.call(&want, &want_normed), large.weights.data());

  InlineStream stream(2);
  std::vector<float> folded(static_cast<size_t>(16 * 16 * 24));
  fold_upsample(folded.data(), large.weights.data(), 16, 24);
  const ConvShape phase_shape{24, 16, 1, 2, 2};
  for (int64_t phase = 0; phase < 4; ++phase) {
    HostTensor packed(DType::kF32, {conv_packed_bytes(phase_shape, DType::kF32) / 4});
    conv_pack(stream, packed.data(), folded.data() + phase * 16 * 24 * 4, phase_shape, DType::kF32);
    FrameConv f = large.call(&got, &got_normed);
    f.shape = phase_shape;
    f.packed = packed.data();
    f.in = low;
    f.frames[0] = small.memory.data();
    f.rows = 5;
    f.columns = 7;
    f.dy = phase / 2 - 1;
    f.dx = phase % 2 - 1;
    f.finish.step = 2;
    f.finish.y = phase / 2;
    f.finish.x = phase % 2;
    frame_conv(stream, f);
  }
  EXPECT_LE(relative_error(got.values(), want.values()), 1e-6);
  EXPECT_LE(relative_error(got_normed.values(), want_normed.values()), 1e-6);
}

TEST(FrameFinish, IsTheFinishOfAConvolutionByOne) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const FrameLayout l{5, 21, 40, dtype};
    const Frame in(l, 1), residual(l, 2);
    const std::vector<float> gamma = padded(40, 3, 1);
    Frame raw(l), normed(l), want_raw(l), want_normed(l);
    FrameFinish f;
    f.out = l;
    f.residual = residual.memory.data();
    f.raw = raw.memory.data();
    f.normed = normed.memory.data();
    f.gamma = gamma.data();
    InlineStream stream(2);
    frame_finish(stream, in.memory.data(), f);
    FrameConv c;
    c.shape = {40, 40, 1, 1, 1};
    c.in = l;
    c.frames[0] = in.memory.data();
    c.rows = 5;
    c.columns = 21;
    c.finish = f;
    c.finish.raw = want_raw.memory.data();
    c.finish.normed = want_normed.memory.data();
    std::vector<float> unit(1600);
    for (size_t i = 0; i < 40; ++i) unit[i * 41] = 1;
    reference::frame_conv(c, unit.data());
    EXPECT_LE(relative_error(raw.values(), want_raw.values()), dtype == DType::kBF16 ? 1.5e-3 : 2e-7);
    EXPECT_LE(relative_error(normed.values(), want_normed.values()), dtype == DType::kBF16 ? 1.5e-3 : 5e-7);
    EXPECT_TRUE(raw.clean() && normed.clean());
  }
}

TEST(Bands, CoverEveryCellOnce) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 3}, {16, 16}, {60, 104}, {480, 832}, {1, 5000}, {5000, 1}, {7, 257}}) {
    const conv3d::Bands b = conv3d::bands(rows, columns);
    EXPECT_GE(b.rows * b.down, rows);
    EXPECT_LT(b.rows * (b.down - 1), rows);
    EXPECT_GE(b.columns * b.across, columns);
    EXPECT_LT(b.columns * (b.across - 1), columns);
    EXPECT_LE(b.rows * b.columns, 512);
  }
}

// What tiles read of the parts lies within them, and results within the tiles, whatever the sides.
TEST(SplitPlan, TilesReadWithinTheParts) {
  for (const conv3d::SplitShape& s : std::vector<conv3d::SplitShape>{{64, 64, 1, 3, 3, 1}, {64, 96, 1, 3, 3, 2}, {64, 96, 1, 1, 1, 2}, {12, 64, 1, 4, 4, 1},
                                                                     {9, 24, 1, 2, 2, 2}, {128, 256, 2, 5, 1, 1}, {40, 20, 1, 7, 7, 3}, {384, 384, 3, 3, 3, 1}})
    for (int64_t rows : {1, 2, 7})
      for (int64_t columns : {1, 16, 53}) {
        const conv3d::SplitPlan p = conv3d::split_plan(s, rows, columns);
        EXPECT_EQ(p.width * p.steps >= s.in && p.width * (p.steps - 1) < s.in, true);
        EXPECT_EQ(32 * p.across, s.kw * p.width);
        EXPECT_GE(16 * p.tiles, (rows - 1) * p.pitch + columns);
        EXPECT_LT(16 * (p.tiles - 1), (rows - 1) * p.pitch + columns);
        // A row of inputs ends before the next begins.
        EXPECT_LE((columns - 1) * s.stride + s.kw, s.stride * p.pitch);
        const int64_t last = s.stride * (16 * p.tiles - 1) + (s.kh - 1) / s.stride * s.stride * p.pitch + s.kw - 1;
        EXPECT_LT(last * p.width, p.phase);
        EXPECT_EQ(p.part, std::min(s.stride, s.kh) * p.phase);
        EXPECT_GE(p.bytes, p.group * s.kt * 3 * p.part * 2 + 16 * s.kt * s.kh * p.across);
        EXPECT_TRUE(p.group >= 1 && p.group <= p.steps);
      }
}

TEST(SplitPlan, PiecesAreSmallAndNoneIsEmpty) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 3}, {60, 104}, {240, 416}, {1080, 1920}, {1, 5000}, {5000, 1}, {7, 257}})
    for (const conv3d::SplitShape& s : std::vector<conv3d::SplitShape>{{64, 64, 1, 3, 3, 1}, {128, 256, 2, 5, 1, 1}, {256, 2, 1, 3, 3, 1}, {64, 96, 1, 1, 1, 2}}) {
      int64_t h = 0, w = 0;
      conv3d::split_piece_sides(s, rows, columns, &h, &w);
      EXPECT_TRUE(h >= 1 && h <= rows && w >= 1 && w <= columns) << rows << " " << columns;
      EXPECT_LE(h * w, 560);
    }
}

}  // namespace
}  // namespace megaslide
