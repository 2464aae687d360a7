// What networks of optical flow do to frames, as CUDA kernels.
#include "kernels/flow/flow.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/cuda/frames.h"

namespace megaslide {
namespace {

using namespace testing_support;

TEST(CudaFlow, Lookup) {
  struct Case {
    int64_t height, width, channels, radius;
    double spread;  // of flows
  };
  // Fewer cells than a tile and many of them; channels that fill a chunk of 256 in part, just so, and more than once; flows that agree,
  // and flows that part by more than the frame, so that windows miss it.
  for (const Case& c : {Case{1, 3, 16, 0, 0.2}, {5, 6, 40, 3, 1}, {9, 13, 144, 4, 0.5}, {8, 24, 20, 4, 16}, {3, 5, 256, 6, 1}, {4, 3, 280, 4, 1}}) {
    SCOPED_TRACE(fmt::format("{}x{}x{}, radius {}", c.height, c.width, c.channels, c.radius));
    const int64_t k = 2 * c.radius + 1;
    const FrameLayout from_layout{c.height, c.width, c.channels, DType::kF32, 0}, out_layout{c.height, c.width, 5 + kFlowLevels * k * k, DType::kF32, 0};
    std::vector<Array> frames{frame_array(from_layout, 1)};
    CorrelationLookup l;
    l.from_layout = from_layout;
    for (int64_t i = 0; i < kFlowLevels; ++i) {
      // The last levels of small frames have no cells.
      l.level_layouts[i] = {c.height >> i, c.width >> i, c.channels, DType::kF32, i % 2};
      frames.push_back(frame_array(l.level_layouts[i], static_cast<uint64_t>(2 + i)));
    }
    l.from = frames[0].floats();
    for (size_t i = 0; i < kFlowLevels; ++i) l.levels[i] = frames[i + 1].floats();
    std::vector<float> flow = normals(c.height * c.width * 4, 9, c.spread);
    flow[2] = 1e30F, flow[7] = -1e9F;  // the first cell's, the second's
    Array flow_array(DType::kF32, flow);
    l.flow = flow_array.floats(), l.flow_pitch = 4, l.flow_first = 2, l.flow_scale = 2, l.scale = 0.25F, l.radius = c.radius, l.first = 5;
    const auto run = [&] {
      return in_every_schedule([&](Stream& stream) {
        Array out(DType::kF32, zeros(out_layout.elements()));
        cuda::correlation_lookup(stream, out.floats(), out_layout, l);
        return Results{out.values()};
      })[0];
    };
    const std::vector<float> got = run();
    std::vector<float> want = zeros(out_layout.elements());
    reference::correlation_lookup(want.data(), out_layout, l);
    // Positions of some 40 cells in fp32 are half a unit of 4e-6 off.
    EXPECT_LT(relative_error(got, want), 5e-6);
    expect_clean(out_layout, got);
    flow_array.floats()[2] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> broken = run();
    for (int64_t i = 0; i < kFlowLevels * k * k; ++i) ASSERT_TRUE(std::isnan(broken[static_cast<size_t>(out_layout.cell(0, 0) + 5 + i)])) << i;
    EXPECT_TRUE(std::equal(got.begin() + out_layout.cell(0, 1), got.end(), broken.begin() + out_layout.cell(0, 1)));
  }
}

TEST(CudaFlow, Upsampling) {
  for (const auto& [h, w] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 1}, {3, 4}, {2, 7}}) {
    const FrameLayout l{h, w, 576, DType::kF32, 0};
    const std::vector<float> logits = random_frame(l, 1, 3), flow = normals(h * w * 2, 2);
    const Results r = in_every_schedule([&](Stream& stream) {
      Array in(DType::kF32, logits), v(DType::kF32, flow), out = Array::empty(DType::kF32, 2 * 64 * h * w);
      cuda::convex_upsample(stream, out.floats(), in.floats(), l, v.floats());
      return Results{out.values()};
    });
    std::vector<float> want(static_cast<size_t>(2 * 64 * h * w));
    reference::convex_upsample(want.data(), logits.data(), l, flow.data());
    expect_close(r[0], want, kFp32, "flow");
  }
}

TEST(CudaFlow, InstanceNorm) {
  // Fewer and more rows than bands, more cells than a block takes at once; a mean of 100 deviations: sums of squares in fp32 would lose
  // the variance.
  for (const auto& [h, w, channels] : std::vector<std::array<int64_t, 3>>{{1, 1, 16}, {3, 9, 24}, {70, 67, 16}}) {
    const FrameLayout l{h, w, channels};
    std::vector<float> frame = random_frame(l, 1, 0.01, 1);
    const auto n = static_cast<size_t>(l.stored());
    const Results r = in_every_schedule([&](Stream& stream) {
      Array in(DType::kF32, frame), scale = Array::empty(DType::kF32, l.stored()), shift = Array::empty(DType::kF32, l.stored());
      std::vector<double> scratch(static_cast<size_t>(instance_norm_scratch(l)), NAN);
      cuda::instance_norm_scale(stream, scale.floats(), shift.floats(), scratch.data(), in.floats(), l, 1e-5F);
      return Results{scale.values(), shift.values()};
    });
    std::vector<float> scale(n), shift(n);
    reference::instance_norm_scale(scale.data(), shift.data(), frame.data(), l, static_cast<double>(1e-5F));
    // One rounding to fp32 of fp64 sums, which lose 1e4 of 1e-16 at such means.
    expect_close(r[0], scale, 0x1p-24 + 1e-11, "scale");
    expect_close(r[1], shift, 0x1p-24 + 1e-11, "shift");
  }
}

// Passes over frames of the CPU's operations in its order: the CPU's values, but for multiplications and additions that it may round
// together, and for exponentials.
void expect_as_the_cpu(const std::vector<FrameLayout>& layouts, const std::function<Results(Stream&, bool cuda)>& run) {
  InlineStream cpu;
  const Results got = in_every_schedule([&](Stream& stream) { return run(stream, true); }), want = run(cpu, false);
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == zeros(static_cast<int64_t>(want[i].size())))  // a frame without cells
      EXPECT_EQ(got[i], want[i]);
    else
      expect_close(got[i], want[i], kFp32, "frame");
    if (i < layouts.size()) expect_clean(layouts[i], got[i]);
  }
}

struct Side {
  int64_t height, width, channels;
};
// One cell, odd sides, rows of more than a block's quads, frames without cells.
const Side kSides[] = {{0, 0, 16}, {1, 1, 16}, {5, 3, 20}, {3, 70, 40}, {4, 9, 128}};

TEST(CudaFlow, ReluAndPooling) {
  for (const Side& s : kSides) {
    const FrameLayout l{s.height, s.width, s.channels}, half{s.height / 2, s.width / 2, s.channels, DType::kF32, 0};
    const std::vector<float> x = random_frame(l, 1), residual = random_frame(l, 2);
    std::vector<float> scale = normals(l.stored(), 3), shift = normals(l.stored(), 4);
    for (int64_t c = s.channels; c < l.stored(); ++c) shift[static_cast<size_t>(c)] = 0;
    expect_as_the_cpu({l, l, l, half}, [&](Stream& stream, bool cuda) {
      const auto relu = cuda ? &cuda::frame_relu : &cpu::frame_relu;
      Array a(DType::kF32, x), b(DType::kF32, residual), plain(DType::kF32, zeros(l.elements())), pooled(DType::kF32, zeros(half.elements()));
      Array factor(DType::kF32, scale), added(DType::kF32, shift);
      relu(stream, plain.floats(), l, {a.floats()}, {});
      const std::vector<float> alone = plain.values();
      relu(stream, plain.floats(), l, {a.floats(), factor.floats(), added.floats()}, {b.floats()});
      relu(stream, a.floats(), l, {b.floats()}, {a.floats(), factor.floats(), added.floats()});
      (cuda ? &cuda::frame_pool : &cpu::frame_pool)(stream, pooled.floats(), half, b.floats(), l);
      return Results{alone, plain.values(), a.values(), pooled.values()};
    });
  }
  const FrameLayout one{1, 1, 16};
  const Results r = in_every_schedule([&](Stream& stream) {
    Array x(DType::kF32, random_frame(one, 1));
    x.floats()[one.cell(0, 0) + 3] = std::numeric_limits<float>::quiet_NaN();
    cuda::frame_relu(stream, x.floats(), one, {x.floats()}, {});
    return Results{x.values()};
  });
  EXPECT_TRUE(std::isnan(r[0][static_cast<size_t>(one.cell(0, 0) + 3)]));
}

TEST(CudaFlow, Gates) {
  for (const Side& s : kSides) {
    const FrameLayout l{s.height, s.width, s.channels, DType::kF32, 2}, flat{s.height, s.width, s.channels, DType::kF32, 0};
    const FrameLayout both{s.height, s.width, 2 * l.stored(), DType::kF32, 0};
    // Gates where the sigmoid is 0 or 1 too.
    const std::vector<float> gates = random_frame(both, 1, 40), state = random_frame(l, 2), q = random_frame(flat, 3, 2);
    expect_as_the_cpu({both, l, l, l}, [&](Stream& stream, bool cuda) {
      Array g(DType::kF32, gates), h(DType::kF32, state), candidate(DType::kF32, q), reset(DType::kF32, zeros(l.elements())), start(DType::kF32, zeros(l.elements()));
      (cuda ? &cuda::gru_reset : &cpu::gru_reset)(stream, g.floats(), both, reset.floats(), h.floats(), l);
      const auto update = cuda ? &cuda::gru_update : &cpu::gru_update;
      update(stream, h.floats(), l, g.floats(), both, candidate.floats(), flat);
      update(stream, start.floats(), l, nullptr, {}, candidate.floats(), flat);
      return Results{g.values(), reset.values(), h.values(), start.values()};
    });
  }
}

TEST(CudaFlow, Advance) {
  for (const Side& s : {Side{0, 4, 2}, {1, 1, 2}, {4, 5, 2}, {2, 130, 4}})
    for (const bool moves : {false, true}) {
      const FrameLayout delta_layout{s.height, s.width, s.channels, DType::kF32, 0}, rows_layout{s.height, s.width, 7 * s.channels, DType::kF32, 3},
          beside_layout{s.height, s.width, 40, DType::kF32, 1};
      const std::vector<float> flow = normals(s.height * s.width * 6, 1), delta = random_frame(delta_layout, 2);
      expect_as_the_cpu({rows_layout, beside_layout}, [&](Stream& stream, bool cuda) {
        Array vectors(DType::kF32, flow), step(DType::kF32, delta), rows(DType::kF32, zeros(rows_layout.elements())), beside(DType::kF32, zeros(beside_layout.elements()));
        FlowStep f;
        f.flow = vectors.floats(), f.channels = s.channels, f.pitch = 6, f.rows = rows.floats(), f.rows_layout = rows_layout;
        if (moves) f.delta = step.floats(), f.delta_layout = delta_layout, f.beside = beside.floats(), f.beside_layout = beside_layout, f.first = 30;
        (cuda ? &cuda::flow_advance : &cpu::flow_advance)(stream, f);
        return Results{rows.values(), beside.values(), vectors.values()};
      });
    }
}

TEST(CudaFlow, Pictures) {
  const std::vector<uint8_t> rgb = bytes(13 * 9 * 3);
  for (const int64_t block : {1, 2}) {
    const FrameLayout l{16 / block, 12 / block, 3 * block * block, DType::kF32, 2};
    expect_as_the_cpu({l}, [&](Stream& stream, bool cuda) {
      Array frame(DType::kF32, zeros(l.elements()));
      (cuda ? &cuda::picture_frame : &cpu::picture_frame)(
          stream, frame.floats(), l, {.rgb = rgb.data(), .width = 9, .height = 13, .left = 1, .top = 2, .block = block, .scale = 2.0F / 255, .shift = -1});
      return Results{frame.values()};
    });
  }
}

}  // namespace
}  // namespace megaslide
