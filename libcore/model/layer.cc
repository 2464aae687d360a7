#include "model/layer.h"

#include "base/error.h"

namespace megaslide {

namespace {
constexpr int64_t kParamAlignment = 64;       // elements
constexpr int64_t kWorkspaceAlignment = 256;  // bytes
constexpr uintptr_t kDryBase = uintptr_t{1} << 46;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
}  // namespace

ParamLayout::ParamLayout(const std::vector<ParamSpec>& params) {
  offset.reserve(params.size());
  for (const ParamSpec& p : params) {
    offset.push_back(elements);
    const int64_t n = element_count(p.shape);
    elements += round_up(n, kParamAlignment);
    parameters += n;
  }
}

BatchShape BatchShape::own() const {
  if (clip_frames == 0) return *this;
  BatchShape s = *this;
  s.frames = own_frames;
  if (times != 1) s.times = own_frames;
  s.first_frame += own_begin;
  s.own_begin = 0;
  return s;
}

BatchShape BatchShape::slab(FrameRange seen, FrameRange own) const {
  MS_CHECK(clip_frames == 0 && 0 <= seen.begin && seen.begin <= own.begin && own.begin < own.end && own.end <= seen.end && seen.end <= frames);
  BatchShape s = *this;
  s.batch = 1;
  s.clip_frames = frames;
  s.frames = seen.count();
  if (times != 1) s.times = s.frames;
  s.first_frame = seen.begin;
  s.own_begin = own.begin - seen.begin;
  s.own_frames = own.count();
  return s;
}

void* Workspace::take_bytes(int64_t bytes) {
  MS_CHECK(bytes >= 0, "a workspace block of {} bytes", bytes);
  const int64_t begin = used_;
  used_ += round_up(bytes, kWorkspaceAlignment);
  if (used_ > high_) high_ = used_;
  // Offsets from a null pointer are undefined behaviour: a dry workspace hands out addresses that are no memory.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  if (base_ == nullptr) return reinterpret_cast<std::byte*>(kDryBase) + begin;
  MS_CHECK(used_ <= capacity_, "workspace of {} bytes is too small: {} are in use", capacity_, used_);
  return base_ + begin;
}

}  // namespace megaslide
