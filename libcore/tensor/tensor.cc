#include "tensor/tensor.h"

#include <cstring>
#include <new>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

std::string to_string(const Shape& s) {
  std::string text = "[";
  for (size_t i = 0; i < s.size(); ++i) text += (i ? ", " : "") + std::to_string(s[i]);
  return text + "]";
}

HostTensor::HostTensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
  bytes_ = element_count(shape_) * dtype_bits(dtype) / 8;
  const size_t rounded = (static_cast<size_t>(bytes_) + 63) / 64 * 64 + (bytes_ == 0 ? 64 : 0);
  auto* p = static_cast<std::byte*>(::operator new(rounded, kAlignment, std::nothrow));
  if (!p) throw Error(fmt::format("out of host memory: a tensor {} needs {} bytes", to_string(shape_), rounded),
                      "use a smaller size, fewer frames or a smaller batch, or a machine with more memory");
  std::memset(p, 0, rounded);
  data_.reset(p);
}

void HostTensor::Free::operator()(std::byte* p) const { ::operator delete(p, kAlignment); }

HostTensor HostTensor::from(const TensorView& v) {
  HostTensor t(v.dtype, v.shape);
  if (t.bytes()) std::memcpy(t.data(), v.data, static_cast<size_t>(t.bytes()));
  return t;
}

HostTensor HostTensor::f32_from(const TensorView& v) {
  HostTensor t(DType::kF32, v.shape);
  convert_to_f32(t.f32(), v.data, v.dtype, t.elements());
  return t;
}

HostTensor HostTensor::clone() const { return from(view()); }

float* HostTensor::f32() {
  MS_CHECK(dtype_ == DType::kF32);
  return reinterpret_cast<float*>(data_.get());
}
const float* HostTensor::f32() const {
  MS_CHECK(dtype_ == DType::kF32);
  return reinterpret_cast<const float*>(data_.get());
}

}  // namespace megaslide
