#include "kernels/rope/rope.h"

#include <cmath>

#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

constexpr float kEps = 1e-6F;

struct Case {
  RopeGrid grid;
  int64_t batch;
  int shift;
};
// Heads of 6 and 30 channels: pairs on both sides of a quad's and of a head's end. 1536 channels and more: for each number of quads a thread has.
const Case kCases[] = {{{.frames = 1, .height = 1, .width = 1, .heads = 1, .head_dim = 2}, 0, 0},
                       {{.frames = 1, .height = 1, .width = 1, .heads = 1, .head_dim = 2}, 1, 0},
                       {{.frames = 2, .height = 3, .width = 5, .heads = 3, .head_dim = 6, .first_frame = 4}, 1, 0},
                       {{.frames = 3, .height = 1, .width = 2, .heads = 2, .head_dim = 30}, 11, 0},
                       {{.frames = 1, .height = 2, .width = 3, .heads = 2, .head_dim = 128}, 1, 1},
                       {{.frames = 1, .height = 1, .width = 2, .heads = 40, .head_dim = 128, .first_frame = 20}, 1, 0},
                       {{.frames = 1, .height = 1, .width = 1, .heads = 18, .head_dim = 128}, 2, 0},
                       {{.frames = 1, .height = 1, .width = 1, .heads = 12, .head_dim = 128}, 1, 0},
                       {{.frames = 1, .height = 1, .width = 1, .heads = 64, .head_dim = 128}, 1, 1}};

std::vector<float> cpu_table(const RopeGrid& grid) {
  InlineStream stream;
  std::vector<float> table(static_cast<size_t>(rope_table_elements(grid)));
  rope_table(stream, table.data(), grid);
  return table;
}

// fp64 angles of both; what differs is 1e-12 before the rounding to fp32.
TEST(CudaRope, Table) {
  for (const RopeGrid& grid : {kCases[1].grid, kCases[2].grid, RopeGrid{.frames = 21, .height = 45, .width = 80, .heads = 2, .head_dim = 128},
                               RopeGrid{.frames = 1, .height = 1, .width = 1024, .heads = 1, .head_dim = 6, .first_frame = 1000}}) {
    const int64_t n = rope_table_elements(grid);
    const Results r = in_every_schedule([&](Stream& stream) {
      Array table = Array::empty(DType::kF32, n);
      cuda::rope_table(stream, table.floats(), grid);
      return Results{table.values()};
    });
    const std::vector<float> expected = cpu_table(grid);
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(static_cast<double>(r[0][i]), static_cast<double>(expected[i]),
                  0x1p-24 * std::abs(static_cast<double>(expected[i])) + 1e-12) << i;
  }
}

TEST(CudaRope, Forward) {
  for (const Case& c : kCases)
    for (const DType dtype : kBothTypes)
      for (const bool rotate : {false, true}) {
        const int64_t width = c.grid.heads * c.grid.head_dim, rows = c.batch * c.grid.frames * c.grid.height * c.grid.width, n = rows * width;
        SCOPED_TRACE(width);
        const std::vector<float> x = as_stored(dtype, normals(n, 1, 2)), gain = normals(width, 2, 0.5, 1);
        const auto run = [&](bool in_place) {
          return in_every_schedule([&](Stream& stream) {
            Array in(dtype, x, c.shift), out = Array::empty(dtype, n, c.shift), g(DType::kF32, gain), table(DType::kF32, cpu_table(c.grid)),
                rstd = Array::empty(DType::kF32, rows);
            Array& y = in_place ? in : out;
            cuda::rms_rope_forward(stream, y.data(), in_place ? nullptr : rstd.floats(), in.data(), g.floats(),
                                   rotate ? table.floats() : nullptr, c.grid, rows, kEps, dtype);
            return in_place ? Results{y.values()} : Results{y.values(), rstd.values()};
          });
        };
        const Results r = run(false);
        EXPECT_EQ(run(true)[0], r[0]);
        std::vector<float> expected(x.size()), rstd(static_cast<size_t>(rows));
        reference::rms_rope_forward(expected.data(), x.data(), gain.data(), rotate, c.grid, rows, kEps);
        for (int64_t i = 0; i < n; ++i) {
          const double v = static_cast<double>(x[static_cast<size_t>(i)]);
          rstd[static_cast<size_t>(i / width)] += static_cast<float>(v * v / static_cast<double>(width));
        }
        for (float& v : rstd) v = 1 / std::sqrt(v + kEps);
        expect_close(r[0], expected, kFp32 + rounding(dtype), "y");
        expect_close(r[1], rstd, 5e-6, "rstd");  // the expectation's fp32 sum of up to 5120 terms of one sign: √5120 · 2^-24
      }
}

TEST(CudaRope, Backward) {
  for (const Case& c : kCases)
    for (const DType dtype : kBothTypes)
      for (const bool rotate : {false, true}) {
        const int64_t width = c.grid.heads * c.grid.head_dim, rows = c.batch * c.grid.frames * c.grid.height * c.grid.width, n = rows * width;
        if (rows > 20 && !rotate) continue;
        SCOPED_TRACE(width);
        const std::vector<float> x = as_stored(dtype, normals(n, 1, 2)), gain = normals(width, 2, 0.5, 1), dy = normals(n, 3),
                                 dgain = normals(width, 4), dbias = normals(width, 5);
        std::vector<float> rstd(static_cast<size_t>(rows));
        InlineStream cpu;
        Array unused = Array::empty(dtype, n);
        rms_rope_forward(cpu, unused.data(), rstd.data(), Array(dtype, x).data(), gain.data(), nullptr, c.grid, rows, kEps, dtype);
        const Results r = in_every_schedule([&](Stream& stream) {
          Array in(dtype, x, c.shift), dx = Array::empty(dtype, n, c.shift), g(DType::kF32, gain), table(DType::kF32, cpu_table(c.grid)),
              scale(DType::kF32, rstd), d(DType::kF32, dy), ggain(DType::kF32, dgain), gbias(DType::kF32, dbias),
              scratch = Array::empty(DType::kF32, rms_rope_scratch(std::max<int64_t>(1, rows), width));
          cuda::rms_rope_backward(stream, dx.data(), ggain.floats(), gbias.floats(), scratch.floats(), d.floats(), in.data(), scale.floats(),
                                  g.floats(), rotate ? table.floats() : nullptr, c.grid, rows, dtype);
          return Results{dx.values(), ggain.values(), gbias.values()};
        });
        std::vector<float> dx(x.size()), ggain = dgain, gbias = dbias;
        reference::rms_rope_backward(dx.data(), ggain.data(), gbias.data(), dy.data(), x.data(), gain.data(), rotate, c.grid, rows, kEps);
        // Of two channels dx is what a difference of nearly equal terms leaves: up to a hundred roundings.
        const double tolerance = width == 2 ? 1e-5 : kFp32;
        expect_close(r[0], dx, tolerance + rounding(dtype), "dx");
        expect_close(r[1], ggain, kFp32, "dgain");
        expect_close(r[2], gbias, tolerance, "dbias");
      }
}

}  // namespace
}  // namespace megaslide
