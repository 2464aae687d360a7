#include "kernels/modulate/modulate.h"

#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

// The same operations in the same order as the CPU's.
TEST(CudaModulate, ModulationHasTheBitsOfTheCpu) {
  struct Case {
    int64_t batch, slots, e_slots, width;
  };
  for (const Case& c : {Case{1, 6, 6, 8}, {1, 1, 1, 1}, {2, 6, 6, 37}, {3, 2, 1, 300}})
    for (const DType dtype : kBothTypes) {
      const int64_t n = c.batch * c.slots * c.width, table_count = c.slots * c.width, e_count = c.batch * c.e_slots * c.width;
      const std::vector<float> table = normals(table_count, 1), e = normals(e_count, 2), dm = normals(n, 3), dtable = normals(table_count, 4),
                               de = normals(e_count, 5);
      const auto run = [&](auto* forward, auto* backward) {
        return [&, forward, backward](Stream& stream) {
          Array m = Array::empty(DType::kF32, n), t(dtype, table), ee(DType::kF32, e), d(DType::kF32, dm), gt(DType::kF32, dtable),
                ge(DType::kF32, de);
          forward(stream, m.floats(), t.data(), ee.floats(), c.batch, c.slots, c.e_slots, c.width, 0b10010, dtype);
          backward(stream, gt.floats(), ge.floats(), d.floats(), c.batch, c.slots, c.e_slots, c.width);
          return Results{m.values(), gt.values(), ge.values()};
        };
      };
      InlineStream stream;
      EXPECT_EQ(in_every_schedule(run(&cuda::modulation_forward, &cuda::modulation_backward)),
                run(&cpu::modulation_forward, &cpu::modulation_backward)(stream));
    }
}

struct Case {
  int64_t groups, group_rows, width;
  int shift;
};
const Case kCases[] = {{0, 1, 4, 0}, {1, 1, 1, 0}, {2, 65, 8, 0}, {3, 3, 37, 1}, {2, 5, 516, 0}, {1, 130, 20, 1}};

std::vector<float> gates(const Case& c) { return normals(c.groups * 3 * c.width, 9); }

TEST(CudaModulate, GatedAddForward) {
  for (const Case& c : kCases)
    for (const DType dtype : kBothTypes)
      for (const bool with_gate : {false, true}) {
        const int64_t rows = c.groups * c.group_rows, n = rows * c.width, stride = 3 * c.width;
        const std::vector<float> x = normals(n, 1), a = normals(n, 2), gate = gates(c), stored = as_stored(dtype, a);
        const auto run = [&](bool keep) {
          return in_every_schedule([&](Stream& stream) {
            // y takes the place of x.
            Array y(DType::kF32, x, c.shift), in(DType::kF32, a, c.shift), kept(dtype, keep ? zeros(n) : stored, c.shift), g(DType::kF32, gate);
            cuda::gated_add_forward(stream, y.floats(), keep ? kept.data() : nullptr, y.floats(), in.floats(), with_gate ? g.floats() : nullptr,
                                    rows, c.width, c.group_rows, stride, dtype);
            return Results{y.values(), kept.values()};
          });
        };
        const Results r = run(true);
        EXPECT_EQ(run(false), r);
        EXPECT_EQ(r[1], stored);
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(i);
          const float g = with_gate ? gate[static_cast<size_t>(i / c.width / c.group_rows * stride + i % c.width)] : 1.0F;
          ASSERT_EQ(r[0][at], std::fma(g, stored[at], x[at])) << i;
        }
      }
}

TEST(CudaModulate, GatedAddBackward) {
  for (const Case& c : kCases)
    for (const DType dtype : kBothTypes) {
      const int64_t rows = c.groups * c.group_rows, n = rows * c.width, stride = 3 * c.width;
      const std::vector<float> dy = normals(n, 1), a = as_stored(dtype, normals(n, 2)), gate = gates(c), dgate = normals(c.groups * stride, 3),
                               dbias = normals(c.width, 4);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array da = Array::empty(dtype, n, c.shift), d(DType::kF32, dy, c.shift), kept(dtype, a, c.shift), g(DType::kF32, gate),
            gg(DType::kF32, dgate), gb(DType::kF32, dbias), scratch = Array::empty(DType::kF32, gated_add_scratch(rows, c.group_rows, c.width));
        cuda::gated_add_backward(stream, da.data(), gg.floats(), gb.floats(), scratch.floats(), d.floats(), kept.data(), g.floats(), rows,
                                 c.width, c.group_rows, stride, dtype);
        return Results{da.values(), gg.values(), gb.values()};
      });
      std::vector<float> da(dy.size());
      std::vector<double> gg(dgate.begin(), dgate.end()), gb(dbias.begin(), dbias.end());
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i), to = static_cast<size_t>(i / c.width / c.group_rows * stride + i % c.width);
        const double v = static_cast<double>(dy[at]) * static_cast<double>(gate[to]);
        da[at] = static_cast<float>(v);
        gg[to] += static_cast<double>(dy[at]) * static_cast<double>(a[at]);
        gb[static_cast<size_t>(i % c.width)] += v;
      }
      EXPECT_EQ(r[0], as_stored(dtype, da));
      expect_close(r[1], std::vector<float>(gg.begin(), gg.end()), kFp32, "dgate");
      expect_close(r[2], std::vector<float>(gb.begin(), gb.end()), kFp32, "dbias");
    }
}

}  // namespace
}  // namespace megaslide
