#include "model/clip_traffic.h"

#include "base/error.h"

namespace megaslide {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

}  // namespace

ClipReader::ClipReader(ModelMemory* memory, const TensorView& clip, int64_t first, int64_t rows)
    : memory_(memory), clip_(clip), first_(first) {
  const Shape& s = clip_.shape;
  plane_ = memory_ ? rows * s[3] : s[1] * s[2] * s[3];
  if (memory_)
    for (ModelBuffer& slot : slots_) slot = ModelBuffer(memory_, s[0] * plane_ * kFloat, "codec: planes of a frame");
}

int64_t ClipReader::device_bytes(int64_t channels, int64_t rows, int64_t width) {
  return 2 * ModelMemory::rounded(channels * rows * width * kFloat);
}

const float* ClipReader::next(int64_t t) {
  const Shape& s = clip_.shape;
  const auto from = [&](int64_t c) {
    return reinterpret_cast<const float*>(clip_.data) + ((c * s[1] + t) * s[2] + first_) * s[3];
  };
  if (!memory_) return from(0);
  slot_ = static_cast<size_t>(t) % slots_.size();
  memory_->wait(read_[slot_]);
  float* to = slots_[slot_].f32();
  for (int64_t c = 0; c < s[0]; ++c) memory_->upload(to + c * plane_, from(c), plane_ * kFloat);
  return to;
}

void ClipReader::read() {
  if (memory_) read_[slot_] = memory_->mark();
}

int64_t ClipWriter::device_bytes(int64_t channels, int64_t height, int64_t width) {
  return ClipReader::device_bytes(channels, height, width);
}

float* ClipWriter::next(int64_t channels, int64_t height, int64_t width) {
  if (out_.empty()) {
    out_ = HostTensor(DType::kF32, {channels, frames_, height, width});
    plane_ = (memory_ ? 1 : frames_) * height * width;
    if (memory_)
      for (ModelBuffer& slot : slots_) slot = ModelBuffer(memory_, channels * plane_ * kFloat, "codec: planes of a frame");
  }
  if (!memory_) return out_.f32() + done_ * height * width;
  const size_t slot = static_cast<size_t>(done_) % slots_.size();
  memory_->wait(there_[slot]);
  return slots_[slot].f32();
}

void ClipWriter::written() {
  if (memory_) {
    const size_t slot = static_cast<size_t>(done_) % slots_.size();
    for (int64_t c = 0; c < out_.shape()[0]; ++c)
      there_[slot] = memory_->download(out_.f32() + (c * frames_ + done_) * plane_, slots_[slot].f32() + c * plane_, plane_ * kFloat);
  }
  ++done_;
}

HostTensor ClipWriter::finish() {
  MS_CHECK(done_ == frames_, "{} of {} frames", done_, frames_);
  for (const ModelMemory::Mark& mark : there_)
    if (memory_) memory_->wait(mark);
  return std::move(out_);
}

}  // namespace megaslide
