// Where a network computes: a stream, and the memory that its work reads and writes: the processor's, or a device's. Pictures come from
// the processor's memory and results return to it.
#pragma once
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "kernels/stream.h"
#include "model/model_memory.h"
#include "tensor/tensor.h"

namespace megaslide {

class Place {
 public:
  Place(Stream& stream) : stream_(&stream) {}                                      // NOLINT(google-explicit-constructor): the processor
  Place(ModelMemory& device) : stream_(&device.stream()), device_(&device) {}  // NOLINT(google-explicit-constructor)

  Stream& stream() const { return *stream_; }
  ModelMemory* device() const { return device_; }  // null: the processor
  // Of what the stream's work so far leaves there; waits for it.
  void download(void* to, const void* from, int64_t bytes) const;
  // Waits for the stream's work so far.
  void finish() const {
    if (device_) device_->wait(device_->mark());
  }

 private:
  Stream* stream_;
  ModelMemory* device_ = nullptr;
};

// Values at a place. One that a network makes for a call may go as soon as the stream has been given all that uses it.
class PlacedTensor {
 public:
  PlacedTensor() = default;
  PlacedTensor(const Place& place, DType dtype, Shape shape)  // zeroed
      : dtype_(dtype), shape_(std::move(shape)), memory_(place.device(), element_count(shape_) * dtype_bits(dtype) / 8, "network") {}
  // Takes the values over, or brings them to the device and waits until they are there.
  PlacedTensor(const Place& place, HostTensor host)
      : dtype_(host.dtype()), shape_(host.shape()), memory_(ModelBuffer::holding(place.device(), std::move(host), "network")) {}

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return element_count(shape_); }
  int64_t bytes() const { return elements() * dtype_bits(dtype_) / 8; }
  bool empty() const { return memory_.empty(); }
  std::byte* data() { return static_cast<std::byte*>(memory_.data()); }
  const std::byte* data() const { return static_cast<const std::byte*>(memory_.data()); }
  float* f32() {
    MS_CHECK(dtype_ == DType::kF32, "{}", dtype_name(dtype_));
    return memory_.f32();
  }
  const float* f32() const { return const_cast<PlacedTensor*>(this)->f32(); }
  // A copy in the processor's memory, once the work so far is done.
  HostTensor to_host(const Place& place) const {
    HostTensor out(dtype_, shape_);
    place.download(out.data(), data(), out.bytes());
    return out;
  }

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  ModelBuffer memory_;
};

// Values of the processor's, as work at a place reads them: where they are, or a copy on the device. They stay until a result has
// returned, or finish().
class PlacedInput {
 public:
  PlacedInput(const Place& place, const void* values, int64_t bytes) : data_(values) {
    if (!place.device()) return;
    copy_ = ModelBuffer(place.device(), bytes, "network: input");
    place.device()->upload(copy_.data(), values, bytes);
    data_ = copy_.data();
  }
  PlacedInput(const Place& place, const HostTensor& values) : PlacedInput(place, values.data(), values.bytes()) {}
  const float* f32() const { return static_cast<const float*>(data_); }
  const uint8_t* u8() const { return static_cast<const uint8_t*>(data_); }

 private:
  ModelBuffer copy_;
  const void* data_;
};

}  // namespace megaslide
