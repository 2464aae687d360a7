#include "kernels/gemm_fp8/gemm_fp8.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/gemm_fp8/e4m3.h"

namespace megaslide {
namespace {

constexpr int64_t kPiece = 1 << 16;  // numbers an item
constexpr int64_t kRows = 256;       // of results that are scaled at a time

// Writes the scale, and the values of the codes to `out`.
void quantize(Stream& stream, Fp8Header& header, bf16* out, const bf16* x, int64_t n) {
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  std::vector<float> maxima(static_cast<size_t>(pieces));
  const auto each_piece = [&](auto body) {
    stream.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) body(p, p * kPiece, std::min(n, (p + 1) * kPiece));
    });
  };
  each_piece([&](int64_t piece, int64_t begin, int64_t end) {
    float most = 0;
    for (int64_t i = begin; i < end; ++i) {
      const float v = std::fabs(to_float(x[i]));
      most = v > most ? v : most;  // a NaN is not
    }
    maxima[static_cast<size_t>(piece)] = most;
  });
  const Fp8Scale s = fp8_scale(maxima.empty() ? 0 : *std::max_element(maxima.begin(), maxima.end()));
  header.scale = s.scale, header.inverse = s.inverse;
  each_piece([&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = to_bf16(from_e4m3(to_e4m3(to_float(x[i]) * s.inverse)));
  });
}

// What lies behind the header.
template <class T>
T* codes(Fp8Header* h) {
  return reinterpret_cast<T*>(h + 1);
}

}  // namespace

namespace cpu {

void fp8_quantize(Stream& stream, void* q, const bf16* x, int64_t n) {
  auto* header = static_cast<Fp8Header*>(q);
  quantize(stream, *header, codes<bf16>(header), x, n);
}

void fp8_pack(Stream& stream, void* packed, const bf16* w, int64_t n, int64_t k) {
  auto* header = static_cast<Fp8Header*>(packed);
  std::vector<bf16> values(static_cast<size_t>(n * k));
  quantize(stream, *header, values.data(), w, n * k);
  cpu::linear_pack(stream, codes<std::byte>(header), values.data(), n, k, DType::kBF16, PackFor::kForward);
}

void linear_forward_fp8(Stream& stream, void* y, const void* x, const void* packed, const bf16* bias, int64_t first_row,
                        int64_t m, int64_t n, int64_t k, DType out) {
  MS_CHECK(out == DType::kF32 || out == DType::kBF16, "{}", dtype_name(out));
  const auto *left = static_cast<const Fp8Header*>(x), *right = static_cast<const Fp8Header*>(packed);
  const bf16* rows = reinterpret_cast<const bf16*>(left + 1) + first_row * k;
  const float scale = left->scale * right->scale;
  std::vector<float> rounded(out == DType::kF32 ? 0 : static_cast<size_t>(std::min(m, kRows) * n));
  for (int64_t begin = 0; begin < m; begin += kRows) {
    const int64_t count = std::min(kRows, m - begin);
    float* sums = out == DType::kF32 ? static_cast<float*>(y) + begin * n : rounded.data();
    cpu::linear_forward(stream, sums, rows + begin * k, right + 1, nullptr, count, n, k, DType::kBF16);
    stream.parallel_for(count, 16, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i)
        for (int64_t j = 0; j < n; ++j) {
          float& v = sums[i * n + j];
          v = bias ? scale * v + to_float(bias[j]) : scale * v;
          if (out == DType::kBF16) static_cast<bf16*>(y)[(begin + i) * n + j] = to_bf16(v);
        }
    });
  }
}

}  // namespace cpu
}  // namespace megaslide
