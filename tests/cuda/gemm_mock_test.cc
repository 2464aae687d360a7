// How often and with what cuBLASLt is asked, and what its failures say: by its mock.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <thread>

#include "tests/cuda/gemm_layer.h"
#include "tests/mock_cuda/mock_cublaslt.h"
#include "tests/support/error_text.h"
#include "tests/support/fp8_layer.h"

namespace megaslide {
namespace {

using namespace testing_support;

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
    if (error == "no error") break;
    EXPECT_NE(error.find("cublasLt"), std::string::npos) << error;
    EXPECT_NE(error.find("(4,5)·(5,3), left transposed, BF16 to BF16, bias: CUBLAS_STATUS_ALLOC_FAILED"), std::string::npos) << error;
    EXPECT_EQ(error_of(run), "no error");  // nothing of the failure is kept
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
  for (const std::function<void()>& enough : {std::function<void()>(forward), std::function<void()>(gated), std::function<void()>(gradient)})
    EXPECT_EQ(error_of(enough), "no error");
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

// One search for products that differ in their scales alone, each with those of its own operands.
TEST(CudaGemmFp8, AlgorithmsAreFoundOnce) {
  InlineStream stream;
  {
    const Workspace workspace(1 << 16);
    const mock_cuda::CublasLtCounts before = mock_cuda::cublaslt_counts();
    for (const float size : {1.0f, 64.0f}) {
      Fp8Memory x(fp8_operand_bytes(256)), w(fp8_packed_bytes(16, 16));
      cuda::fp8_quantize(stream, x.data(), rounded(std::vector<float>(256, size)).data(), 256);
      cuda::fp8_pack(stream, w.data(), rounded(std::vector<float>(256, 1)).data(), 16, 16);
      Array y = Array::empty(DType::kF32, 256);
      cuda::linear_forward_fp8(stream, y.data(), x.data(), w.data(), nullptr, 0, 16, 16, 16, DType::kF32);
      expect_close(y.values(), std::vector<float>(256, 16 * size), kFp32, "y");
    }
    const mock_cuda::CublasLtCounts after = mock_cuda::cublaslt_counts();
    EXPECT_EQ(after.heuristics - before.heuristics, 1);
    EXPECT_EQ(after.products - before.products, 2);
  }
  EXPECT_EQ(mock_cuda::cublaslt_counts().objects, 0);
}

// cuBLASLt takes multiples of 16 at aligned addresses; the plain kernel has the rest.
TEST(CudaGemmFp8, OtherSizesDoWithoutCublasLt) {
  InlineStream stream;
  const Workspace workspace(1 << 16);
  for (const auto& [n, k, shift, products] : std::vector<std::array<int64_t, 4>>{{16, 32, 0, 1}, {8, 32, 0, 0}, {16, 24, 0, 0}, {16, 32, 1, 0}}) {
    Fp8Memory x(fp8_operand_bytes(2 * k)), w(fp8_packed_bytes(n, k));
    cuda::fp8_quantize(stream, x.data(), rounded(normals(2 * k, 1)).data(), 2 * k);
    cuda::fp8_pack(stream, w.data(), rounded(normals(n * k, 2)).data(), n, k);
    Array y = Array::empty(DType::kF32, 2 * n, static_cast<int>(shift));
    const int64_t before = mock_cuda::cublaslt_counts().products;
    cuda::linear_forward_fp8(stream, y.data(), x.data(), w.data(), nullptr, 0, 2, n, k, DType::kF32);
    EXPECT_EQ(mock_cuda::cublaslt_counts().products - before, products) << n << "x" << k << " shift " << shift;
  }
}

// As on a device before compute capability 8.9.
TEST(CudaGemmFp8, FailuresNameTheType) {
  InlineStream stream;
  const Workspace workspace(1 << 16);
  Fp8Memory x(fp8_operand_bytes(256)), w(fp8_packed_bytes(16, 16));
  const std::vector<bf16> ones(256, to_bf16(1));
  cuda::fp8_quantize(stream, x.data(), ones.data(), 256);
  cuda::fp8_pack(stream, w.data(), ones.data(), 16, 16);
  Array y = Array::empty(DType::kF32, 256);
  mock_cuda::fail_cublaslt(1, CUBLAS_STATUS_NOT_SUPPORTED);
  const std::string error = error_of([&] { cuda::linear_forward_fp8(stream, y.data(), x.data(), w.data(), nullptr, 0, 16, 16, 16, DType::kF32); });
  mock_cuda::fail_cublaslt(0, CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(error.find("F8_E4M3 to F32: CUBLAS_STATUS_NOT_SUPPORTED"), std::string::npos) << error;
}

}  // namespace
}  // namespace megaslide
