// Shapes and host tensors.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace megaslide {

using Shape = std::vector<int64_t>;

// The element types that published networks come in.
inline bool is_weight_dtype(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; }

inline int64_t element_count(const Shape& s) {
  int64_t n = 1;
  for (int64_t d : s) n *= d;
  return n;
}
std::string to_string(const Shape& s);  // "[2, 16, 3]"

// A view of row-major elements in host memory; does not own.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;
  int64_t elements() const { return element_count(shape); }
  int64_t bytes() const { return elements() * dtype_bits(dtype) / 8; }
};

// Owns 64-byte aligned host memory. Movable, not copyable (clone() says so).
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, Shape shape);  // zeroed
  HostTensor clone() const;
  static HostTensor from(const TensorView& v);           // copies
  static HostTensor f32_from(const TensorView& v);       // copies and converts to F32

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return element_count(shape_); }
  int64_t bytes() const { return bytes_; }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  float* f32();              // CHECKs the dtype
  const float* f32() const;
  TensorView view() const { return {dtype_, shape_, data_.get()}; }
  bool empty() const { return data_ == nullptr; }

 private:
  struct Free { void operator()(std::byte* p) const; };
  DType dtype_ = DType::kF32;
  Shape shape_;
  int64_t bytes_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace megaslide
