// A linear layer's operands, its products by definition, and the workspace that products on the device are lent.
#pragma once
#include <cstring>
#include <new>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "tests/cuda/schedules.h"

namespace megaslide::testing_support {

struct ProductShape {
  int64_t m, n, k;
};

// Lends products a workspace of this many bytes, half of it cuBLASLt's, full of what is no number.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : memory_(new (kAlignment) std::byte[bytes]) {
    std::memset(memory_, 0xff, bytes);
    cuda::set_gemm_workspace(memory_, bytes);
  }
  ~Workspace() {
    cuda::release_gemm();
    ::operator delete[](memory_, kAlignment);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

 private:
  static constexpr std::align_val_t kAlignment{256};
  std::byte* memory_;
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
inline float item(const std::vector<float>& v, int64_t i) { return v[static_cast<size_t>(i)]; }

// Operands of a layer as its type stores them.
struct Layer {
  Layer(const ProductShape& s, DType t)
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

}  // namespace megaslide::testing_support
