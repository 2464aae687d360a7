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

void* Workspace::take_bytes(int64_t bytes) {
  MS_CHECK(bytes >= 0, "a workspace block of {} bytes", bytes);
  const int64_t begin = used_;
  used_ += round_up(bytes, kWorkspaceAlignment);
  if (used_ > high_) high_ = used_;
  // Offsets from a null pointer are undefined behaviour: a dry workspace hands out addresses that are no memory.
  if (base_ == nullptr) return reinterpret_cast<std::byte*>(kDryBase) + begin;
  MS_CHECK(used_ <= capacity_, "workspace of {} bytes is too small: {} are in use", capacity_, used_);
  return base_ + begin;
}

}  // namespace megaslide
