// The fixed windows of spec dsa.md §6 as ranges of coordinates, one axis at a time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace megaslide {

struct WindowAxis {
  WindowAxis(int64_t length, int64_t size, int64_t layer)
      : length_(length), size_(std::min(size, length)), shift_(layer % 2 != 0 && size_ < length ? size_ / 2 : 0) {}
  int64_t group(int64_t p) const { return shift_ == 0 ? p / size_ : (p + size_ - shift_) / size_; }
  int64_t groups() const { return group(length_ - 1) + 1; }
  int64_t begin(int64_t g) const { return std::max<int64_t>(0, shift_ == 0 ? g * size_ : (g - 1) * size_ + shift_); }
  int64_t end(int64_t g) const { return std::min(length_, shift_ == 0 ? (g + 1) * size_ : g * size_ + shift_); }

 private:
  int64_t length_, size_, shift_;
};

struct WindowGroups {
  explicit WindowGroups(const WindowShape& s)
      : t(s.frames, s.window[0], s.layer), h(s.height, s.window[1], s.layer), w(s.width, s.window[2], s.layer) {}
  int64_t count() const { return t.groups() * h.groups() * w.groups(); }
  WindowAxis t, h, w;
};

}  // namespace megaslide
