#include "kernels/vector_linear/vector_linear.h"

#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

struct Case {
  int64_t m, n, k;
  int shift;
};
// Rows around groups of four, outputs around warps and lanes, columns around quads.
const Case kCases[] = {{0, 3, 4, 0}, {1, 1, 1, 0}, {2, 5, 256, 0}, {3, 130, 37, 0}, {5, 67, 516, 1}, {9, 6, 40, 0}};

TEST(CudaVectorLinear, AgreesWithFp64) {
  for (const Case& c : kCases)
    for (const DType dtype : kBothTypes) {
      SCOPED_TRACE(c.k);
      const std::vector<float> x = normals(c.m * c.k, 1), w = as_stored(dtype, normals(c.n * c.k, 2)), bias = as_stored(dtype, normals(c.n, 3)),
                               dy = normals(c.m * c.n, 4), dw = normals(c.n * c.k, 5), db = normals(c.n, 6);
      const Results r = in_every_schedule([&](Stream& stream) {
        Array in(DType::kF32, x), weights(dtype, w, c.shift), b(dtype, bias, c.shift), y = Array::empty(DType::kF32, c.m * c.n),
            g(DType::kF32, dy), gw(DType::kF32, dw, c.shift), gb(DType::kF32, db), dx = Array::empty(DType::kF32, c.m * c.k);
        cuda::vector_linear_forward(stream, y.floats(), in.floats(), weights.data(), b.data(), c.m, c.n, c.k, dtype);
        cuda::vector_linear_weight_gradient(stream, gw.floats(), gb.floats(), g.floats(), in.floats(), c.m, c.n, c.k);
        cuda::vector_linear_input_gradient(stream, dx.floats(), g.floats(), weights.data(), c.m, c.n, c.k, dtype);
        return Results{y.values(), gw.values(), gb.values(), dx.values()};
      });
      std::vector<double> y(dy.size()), gw(dw.begin(), dw.end()), gb(db.begin(), db.end()), dx(x.size());
      for (int64_t i = 0; i < c.m; ++i)
        for (int64_t j = 0; j < c.n; ++j) {
          const auto at = static_cast<size_t>(i * c.n + j);
          y[at] = static_cast<double>(bias[static_cast<size_t>(j)]);
          gb[static_cast<size_t>(j)] += static_cast<double>(dy[at]);
          for (int64_t k = 0; k < c.k; ++k) {
            const auto xk = static_cast<size_t>(i * c.k + k), wk = static_cast<size_t>(j * c.k + k);
            y[at] += static_cast<double>(x[xk]) * static_cast<double>(w[wk]);
            gw[wk] += static_cast<double>(dy[at]) * static_cast<double>(x[xk]);
            dx[xk] += static_cast<double>(dy[at]) * static_cast<double>(w[wk]);
          }
        }
      const auto narrow = [](const std::vector<double>& v) { return std::vector<float>(v.begin(), v.end()); };
      expect_close(r[0], narrow(y), kFp32, "y");
      expect_close(r[1], narrow(gw), kFp32, "dw");
      expect_close(r[2], narrow(gb), kFp32, "db");
      expect_close(r[3], narrow(dx), kFp32, "dx");
    }
}

}  // namespace
}  // namespace megaslide
