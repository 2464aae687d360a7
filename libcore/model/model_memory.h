// Memory of a device, as a part of a model that runs once (codec, text encoder) sees it. Without one such a part computes
// on the processor, in the processor's memory, and nothing is copied.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/stream.h"
#include "tensor/tensor.h"

namespace megaslide {

class ModelMemory {
 public:
  // A point in the stream's or a copy's work. Empty: passed.
  using Mark = std::shared_ptr<const void>;

  virtual ~ModelMemory() = default;
  virtual Stream& stream() = 0;  // of all work on this memory
  // Zeroed for the stream, aligned to 256 bytes. Throws Error where no room is left.
  virtual void* allocate(int64_t bytes, const char* name) = 0;
  // At once: no copy from or to it is under way. The stream's work so far may use it: what is allocated next comes behind that.
  virtual void release(void* memory) = 0;
  virtual int64_t available() const = 0;  // bytes, of which a block takes rounded() ones
  static int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

  // Beside the stream: what it has been given so far does not use `to`, what it is given from now on finds the values
  // there. `from` stays until that has been waited for.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  // What the stream's work so far leaves at `from`; what it is given later does not change that before the mark passes.
  virtual Mark download(void* to, const void* from, int64_t bytes) = 0;
  virtual Mark mark() = 0;  // behind what the stream has been given
  // Blocks the host until the mark has passed. Throws what failed.
  virtual void wait(const Mark& mark) = 0;
  // Blocks it until nothing is under way; says nothing of failures.
  virtual void settle() noexcept = 0;
};

// Memory of a part: of a device, or of the processor where there is none.
class ModelBuffer {
 public:
  ModelBuffer() = default;
  ModelBuffer(HostTensor host) : host_(std::move(host)), data_(host_.data()) {}  // NOLINT(google-explicit-constructor)
  // Zeroed.
  ModelBuffer(ModelMemory* memory, int64_t bytes, const char* name) : memory_(memory) {
    if (memory_) {
      data_ = memory_->allocate(bytes, name);
    } else {
      host_ = HostTensor(DType::kU8, {bytes});
      data_ = host_.data();
    }
  }
  // The values of `host`, on the device where there is one; waits until they are there.
  static ModelBuffer holding(ModelMemory* memory, HostTensor host, const char* name) {
    if (!memory) return host;
    ModelBuffer b(memory, host.bytes(), name);
    memory->upload(b.data(), host.data(), host.bytes());
    memory->wait(memory->mark());
    return b;
  }
  ~ModelBuffer() { release(); }
  ModelBuffer(ModelBuffer&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), host_(std::move(other.host_)), data_(std::exchange(other.data_, nullptr)) {}
  ModelBuffer& operator=(ModelBuffer&& other) noexcept {
    if (this == &other) return *this;
    release();
    memory_ = std::exchange(other.memory_, nullptr);
    host_ = std::move(other.host_);
    data_ = std::exchange(other.data_, nullptr);
    return *this;
  }

  void* data() { return data_; }
  const void* data() const { return data_; }
  float* f32() { return static_cast<float*>(data_); }
  const float* f32() const { return static_cast<const float*>(data_); }
  bool empty() const { return data_ == nullptr; }

 private:
  void release() {
    if (memory_ && data_) memory_->release(data_);
  }
  ModelMemory* memory_ = nullptr;
  HostTensor host_;
  void* data_ = nullptr;
};

}  // namespace megaslide
