// The products through the mock of cuBLASLt, and the device kernels around them under the emulator.
#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "kernels/activation/activation.h"
#include "kernels/gemm/gemm_cuda.h"
#include "tests/cuda/schedules.h"
#include "tests/mock_cuda/mock_cublaslt.h"

namespace megaslide {
namespace {

using namespace testing_support;

struct Shape {
  int64_t m, n, k;
};
// One number; a row; odd sizes; more than a piece of rows; a long sum, which the mock cuts in two in its workspace.
const Shape kShapes[] = {{1, 1, 1}, {1, 64, 96}, {7, 13, 29}, {130, 40, 36}, {9, 16, 600}};

// Lends products a workspace of this many bytes, half of it cuBLASLt's, full of what is no number.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : memory_(static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256)), &std::free) {
    std::memset(memory_.get(), 0xff, bytes);
    cuda::set_gemm_workspace(memory_.get(), bytes);
  }
  ~Workspace() { cuda::release_gemm(); }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
};

// out(i,j) = Σ_t left(i,t)·right(t,j) + extra(i,j), fp64 inside.
template <class L, class R, class X>
std::vector<float> product(int64_t rows, int64_t columns, int64_t terms, L left, R right, X extra) {
  std::vector<float> out(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double sum = static_cast<double>(extra(i, j));
      for (int64_t t = 0; t < terms; ++t) sum += static_cast<double>(left(i, t)) * static_cast<double>(right(t, j));
      out[static_cast<size_t>(i * columns + j)] = static_cast<float>(sum);
    }
  return out;
}
float item(const std::vector<float>& v, int64_t i) { return v[static_cast<size_t>(i)]; }

// Operands of a layer as its type stores them.
struct Layer {
  Layer(const Shape& s, DType t)
      : m(s.m), n(s.n), k(s.k), dtype(t), x(as_stored(t, normals(m * k, 1))), w(as_stored(t, normals(n * k, 2))),
        b(as_stored(t, normals(n, 3))), dy(as_stored(t, normals(m * n, 4))) {}
  std::vector<float> y(bool bias) const {
    return product(m, n, k, [&](int64_t i, int64_t t) { return item(x, i * k + t); }, [&](int64_t t, int64_t j) { return item(w, j * k + t); },
                   [&](int64_t, int64_t j) { return bias ? item(b, j) : 0.0f; });
  }
  std::vector<float> dx(const std::vector<float>& before) const {
    return product(m, k, n, [&](int64_t i, int64_t t) { return item(dy, i * n + t); }, [&](int64_t t, int64_t j) { return item(w, t * k + j); },
                   [&](int64_t i, int64_t j) { return item(before, i * k + j); });
  }
  std::vector<float> dw(const std::vector<float>& before) const {
    return product(n, k, m, [&](int64_t i, int64_t t) { return item(dy, t * n + i); }, [&](int64_t t, int64_t j) { return item(x, t * k + j); },
                   [&](int64_t i, int64_t j) { return item(before, i * k + j); });
  }
  Array packed(Stream& stream, PackFor pack_for) const {
    Array in(dtype, w), out = Array::empty(dtype, linear_packed_bytes(n, k, dtype, pack_for) / dtype_bytes(dtype));
    cuda::linear_pack(stream, out.data(), in.data(), n, k, dtype, pack_for);
    return out;
  }
  int64_t m, n, k;
  DType dtype;
  std::vector<float> x, w, b, dy;
};

template <class F>
void each_layer(F body) {
  for (const Shape& s : kShapes)
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        SCOPED_TRACE(fmt::format("{} {}x{}x{} shift {}", dtype_name(dtype), s.m, s.n, s.k, shift));
        body(Layer(s, dtype), shift);
      }
}

TEST(CudaGemm, Forward) {
  const Workspace workspace(1 << 16);
  each_layer([](const Layer& l, int shift) {
    for (const bool bias : {false, true}) {
      const Results r = in_every_schedule([&](Stream& stream) {
        Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x, shift), b(l.dtype, l.b, shift), y = Array::empty(DType::kF32, l.m * l.n, shift),
              rounded = Array::empty(l.dtype, l.m * l.n, shift);
        const void* added = bias ? b.data() : nullptr;
        cuda::linear_forward(stream, y.floats(), x.data(), w.data(), added, l.m, l.n, l.k, l.dtype);
        cuda::linear_operand(stream, rounded.data(), x.data(), w.data(), added, l.m, l.n, l.k, l.dtype);
        return Results{y.values(), rounded.values()};
      });
      expect_close(r[0], l.y(bias), kFp32, "y");
      EXPECT_EQ(r[1], as_stored(l.dtype, r[0]));
    }
  });
}

TEST(CudaGemm, Gradients) {
  const Workspace workspace(1 << 16);
  each_layer([](const Layer& l, int shift) {
    const std::vector<float> dx0 = normals(l.m * l.k, 5), dw0 = normals(l.n * l.k, 6);
    const Results r = in_every_schedule([&](Stream& stream) {
      Array w = l.packed(stream, PackFor::kInputGradient), x(l.dtype, l.x, shift), dy(l.dtype, l.dy, shift),
            dx = Array::empty(DType::kF32, l.m * l.k, shift), sum(DType::kF32, dx0, shift), dw(DType::kF32, dw0, shift);
      cuda::linear_input_gradient(stream, dx.floats(), dy.data(), w.data(), l.m, l.n, l.k, l.dtype, false);
      cuda::linear_input_gradient(stream, sum.floats(), dy.data(), w.data(), l.m, l.n, l.k, l.dtype, true);
      cuda::linear_weight_gradient(stream, dw.floats(), nullptr, dy.data(), x.data(), l.m, l.n, l.k, l.dtype);
      return Results{dx.values(), sum.values(), dw.values()};
    });
    expect_close(r[0], l.dx(zeros(l.m * l.k)), kFp32, "dx");
    expect_close(r[1], l.dx(dx0), kFp32, "dx accumulated");
    expect_close(r[2], l.dw(dw0), kFp32, "dw");
  });
}

TEST(CudaGemm, Gelu) {
  const Workspace workspace(1 << 16);
  each_layer([](const Layer& l, int shift) {
    const Results r = in_every_schedule([&](Stream& stream) {
      Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x, shift), b(l.dtype, l.b, shift), kept = Array::empty(l.dtype, l.m * l.n, shift),
            y = Array::empty(l.dtype, l.m * l.n, shift), alone = Array::empty(l.dtype, l.m * l.n, shift);
      cuda::linear_gelu(stream, y.data(), kept.data(), x.data(), w.data(), b.data(), l.m, l.n, l.k, l.dtype);
      cuda::linear_gelu(stream, alone.data(), nullptr, x.data(), w.data(), b.data(), l.m, l.n, l.k, l.dtype);
      return Results{kept.values(), y.values(), alone.values()};
    });
    // Sums whose rounding turns the other way, twice at most.
    expect_close(r[0], l.y(true), kFp32 + rounding(l.dtype), "kept");
    std::vector<float> value = r[0];
    for (float& v : value) v = static_cast<float>(reference::gelu(static_cast<double>(v)));
    expect_close(r[1], value, kFp32 + rounding(l.dtype), "y");
    EXPECT_EQ(r[2], r[1]);
  });
}

// Groups of 5 rows, the first of which began 3 rows before; without `kept` in runs of 64 rows of the workspace.
TEST(CudaGemm, GatedAdd) {
  each_layer([](const Layer& l, int shift) {
    constexpr int64_t kGroup = 5, kFirst = 3;
    // Not a multiple of four where the rows are not.
    const int64_t stride = l.n + 4;
    const Workspace workspace(static_cast<size_t>(2 * (70 * l.n * dtype_bytes(l.dtype) + 256)));
    const std::vector<float> residual = normals(l.m * l.n, 5), gate = normals(stride * ((kFirst + l.m) / kGroup + 1), 6);
    for (const bool gated : {true, false}) {
      const Results r = in_every_schedule([&](Stream& stream) {
        Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x, shift), b(l.dtype, l.b, shift), kept = Array::empty(l.dtype, l.m * l.n, shift),
              y = Array::empty(DType::kF32, l.m * l.n, shift), before(DType::kF32, residual, shift), in_place(DType::kF32, residual, shift),
              g(DType::kF32, gate, shift);
        const float* factor = gated ? g.floats() : nullptr;
        cuda::linear_gated_add(stream, y.floats(), kept.data(), before.floats(), factor, x.data(), w.data(), b.data(), l.m, l.n, l.k, kFirst,
                               kGroup, stride, l.dtype);
        cuda::linear_gated_add(stream, in_place.floats(), nullptr, in_place.floats(), factor, x.data(), w.data(), b.data(), l.m, l.n, l.k, kFirst,
                               kGroup, stride, l.dtype);
        return Results{kept.values(), y.values(), in_place.values()};
      });
      expect_close(r[0], l.y(true), kFp32 + rounding(l.dtype), "kept");
      std::vector<float> sum = residual;
      for (int64_t i = 0; i < l.m * l.n; ++i) {
        const float factor = gated ? item(gate, (kFirst + i / l.n) / kGroup * stride + i % l.n) : 1.0f;
        sum[static_cast<size_t>(i)] = std::fma(factor, item(r[0], i), item(residual, i));
      }
      EXPECT_EQ(r[1], sum);
      // Runs of other heights: sums in another order, and so roundings that turn.
      expect_close(r[2], sum, kFp32 + rounding(l.dtype), "in place");
    }
  });
}

TEST(CudaGemm, GeluGradient) {
  each_layer([](const Layer& l, int shift) {
    const Workspace workspace(static_cast<size_t>(2 * (70 * l.k * 4 + 256)));
    const std::vector<float> before = as_stored(l.dtype, normals(l.m * l.k, 5)), dbias0 = normals(l.k, 6);
    const Results r = in_every_schedule([&](Stream& stream) {
      // y takes the place of what was kept.
      Array w = l.packed(stream, PackFor::kInputGradient), dy(l.dtype, l.dy, shift), kept(l.dtype, before, shift), dx = Array::empty(l.dtype, l.m * l.k, shift),
            dbias(DType::kF32, dbias0, shift), scratch = Array::empty(DType::kF32, gelu_scratch(l.m, l.k), shift);
      cuda::linear_gelu_gradient(stream, dx.data(), kept.data(), dbias.floats(), scratch.floats(), dy.data(), w.data(), kept.data(), l.m, l.n, l.k,
                                 l.dtype);
      return Results{dx.values(), kept.values(), dbias.values()};
    });
    std::vector<float> dx = l.dx(zeros(l.m * l.k)), y = before, dbias = dbias0;
    for (int64_t i = 0; i < l.m * l.k; ++i) {
      const auto u = static_cast<size_t>(i);
      dx[u] = static_cast<float>(static_cast<double>(dx[u]) * reference::gelu_derivative(static_cast<double>(before[u])));
      y[u] = static_cast<float>(reference::gelu(static_cast<double>(before[u])));
      dbias[static_cast<size_t>(i % l.k)] += dx[u];
    }
    // Of the sum behind a small derivative 1.1 is subtracted and added: twice the error of a sum.
    expect_close(r[0], dx, 2 * kFp32 + rounding(l.dtype), "dx");
    expect_close(r[1], y, kFp32 + rounding(l.dtype), "y");
    expect_close(r[2], dbias, 2 * kFp32, "dbias");
  });
}

// The CPU's bits: blocks of 64 rows in order; more than the 2,048 rows that a block has in flight.
TEST(CudaGemm, BiasGradient) {
  for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {1, 1}, {64, 33}, {200, 77}, {2200, 5}}) {
    const std::vector<float> dy = normals(m * n, 1), before = normals(n, 2);
    std::vector<float> expected = before;
    InlineStream cpu;
    cpu::bias_gradient(cpu, expected.data(), dy.data(), m, n);
    EXPECT_EQ(in_every_schedule([&](Stream& stream) {
                std::vector<float> db = before;
                cuda::bias_gradient(stream, db.data(), dy.data(), m, n);
                return Results{db};
              })[0],
              expected)
        << m << "x" << n;
  }
}

TEST(CudaGemm, CastOperand) {
  for (const int64_t n : {0, 1, 7, 1024, 2051})
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        const std::vector<float> in = normals(n, 1);
        const Results r = in_every_schedule([&](Stream& stream) {
          Array from(DType::kF32, in, shift), to = Array::empty(dtype, n, shift);
          cuda::cast_operand(stream, to.data(), from.floats(), n, dtype);
          return Results{to.values()};
        });
        EXPECT_EQ(r[0], as_stored(dtype, in)) << n;
      }
}

TEST(CudaGemm, NothingToDo) {
  InlineStream stream;
  std::vector<float> dw(12, 3.0f), dbias(4, 2.0f);
  for (const DType dtype : kBothTypes) {
    cuda::linear_forward(stream, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_operand(stream, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_gelu(stream, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_gated_add(stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 3, 4, 0, 1, 3, dtype);
    cuda::linear_input_gradient(stream, nullptr, nullptr, nullptr, 0, 3, 4, dtype, true);
    cuda::linear_weight_gradient(stream, dw.data(), nullptr, nullptr, nullptr, 0, 3, 4, dtype);
    cuda::linear_gelu_gradient(stream, nullptr, nullptr, dbias.data(), nullptr, nullptr, nullptr, nullptr, 0, 3, 4, dtype);
  }
  EXPECT_EQ(dw, std::vector<float>(12, 3.0f));
  EXPECT_EQ(dbias, std::vector<float>(4, 2.0f));
}

// One search a shape; a long sum takes cuBLASLt's part of the workspace; nothing is left behind.
TEST(CudaGemm, AlgorithmsAreFoundOnce) {
  InlineStream stream;
  {
    const Workspace workspace(1 << 16);
    const Layer l({9, 16, 600}, DType::kBF16);
    Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x), y = Array::empty(DType::kF32, l.m * l.n);
    const mock_cuda::CublasLtCounts before = mock_cuda::cublaslt_counts();
    for (int i = 0; i < 3; ++i) cuda::linear_forward(stream, y.floats(), x.data(), w.data(), nullptr, l.m, l.n, l.k, l.dtype);
    const mock_cuda::CublasLtCounts after = mock_cuda::cublaslt_counts();
    EXPECT_EQ(after.heuristics - before.heuristics, 1);
    EXPECT_EQ(after.products - before.products, 3);
    EXPECT_EQ(after.with_workspace - before.with_workspace, 3);
    EXPECT_GT(after.objects, 0);
  }
  EXPECT_EQ(mock_cuda::cublaslt_counts().objects, 0);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Each call that can fail does once; then everything works.
TEST(CudaGemm, FailuresNameCallShapeAndStatus) {
  InlineStream stream;
  const Layer l({3, 4, 5}, DType::kBF16);
  Array w = l.packed(stream, PackFor::kForward), x(l.dtype, l.x), b(l.dtype, l.b), y = Array::empty(l.dtype, l.m * l.n);
  const auto run = [&] { cuda::linear_operand(stream, y.data(), x.data(), w.data(), b.data(), l.m, l.n, l.k, l.dtype); };
  int failures = 0;
  for (int call = 1;; ++call, ++failures) {
    cuda::release_gemm();
    mock_cuda::fail_cublaslt(call, CUBLAS_STATUS_ALLOC_FAILED);
    const std::string error = error_of(run);
    mock_cuda::fail_cublaslt(0, CUBLAS_STATUS_SUCCESS);
    if (error.empty()) break;
    EXPECT_NE(error.find("cublasLt"), std::string::npos) << error;
    EXPECT_NE(error.find("(4,5)·(5,3), left transposed, BF16 to BF16, bias: CUBLAS_STATUS_ALLOC_FAILED"), std::string::npos) << error;
    EXPECT_EQ(error_of(run), "");  // nothing of the failure is kept
  }
  EXPECT_EQ(failures, 19);  // handle, descriptor 6, layouts 3, preference 7, search, product
  expect_close(y.values(), l.y(true), kFp32 + rounding(l.dtype), "y");
  cuda::release_gemm();
  EXPECT_EQ(mock_cuda::cublaslt_counts().objects, 0);
}

TEST(CudaGemm, TooLittleWorkspace) {
  InlineStream stream;
  const Layer l({70, 64, 8}, DType::kBF16);
  Array w = l.packed(stream, PackFor::kForward), back = l.packed(stream, PackFor::kInputGradient), x(l.dtype, l.x), b(l.dtype, l.b),
        y = Array::empty(DType::kF32, l.m * l.n), dy(l.dtype, l.dy), scratch = Array::empty(DType::kF32, 2 * l.k), kept(l.dtype, l.x), dx(l.dtype, l.x);
  const auto forward = [&] { cuda::linear_forward(stream, y.floats(), x.data(), w.data(), b.data(), l.m, l.n, l.k, l.dtype); };
  const auto gated = [&] {
    cuda::linear_gated_add(stream, y.floats(), nullptr, y.floats(), nullptr, x.data(), w.data(), b.data(), l.m, l.n, l.k, 0, l.m, 0, l.dtype);
  };
  const auto gradient = [&] {
    cuda::linear_gelu_gradient(stream, dx.data(), kept.data(), scratch.floats(), scratch.floats(), dy.data(), back.data(), kept.data(), l.m, l.n, l.k, l.dtype);
  };
  EXPECT_NE(error_of(forward).find("linear_forward: 0 bytes of the workspace for products are free, at least 256 are needed"), std::string::npos);
  EXPECT_NE(error_of(gated).find("linear_gated_add: 0 bytes of the workspace for products are free, at least 8192"), std::string::npos);
  EXPECT_NE(error_of(gradient).find("linear_gelu_gradient: 0 bytes of the workspace for products are free, at least 2048"), std::string::npos);
  const Workspace workspace(2 * 8192);
  EXPECT_EQ(error_of(forward) + error_of(gated) + error_of(gradient), "");
}

// Threads that share a plan, each with a bias of its own.
TEST(CudaGemm, FromSeveralThreads) {
  const Layer l({6, 8, 10}, DType::kF32);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&l, t] {
      InlineStream stream;
      const float added = static_cast<float>(t);
      Array x(l.dtype, l.x), w(l.dtype, l.w), b(l.dtype, std::vector<float>(8, added)), y = Array::empty(l.dtype, l.m * l.n);
      std::vector<float> expected = l.y(false);
      for (float& v : expected) v += added;
      for (int i = 0; i < 20; ++i) {
        cuda::linear_operand(stream, y.data(), x.data(), w.data(), b.data(), l.m, l.n, l.k, l.dtype);
        expect_close(y.values(), expected, kFp32, "y");
      }
    });
  for (std::thread& t : threads) t.join();
  cuda::release_gemm();
}

}  // namespace
}  // namespace megaslide
