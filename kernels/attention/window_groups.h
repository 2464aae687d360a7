// The fixed windows of spec dsa.md §6 as ranges of coordinates, one axis at a time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace megaslide {

struct WindowAxis {
  // These positions are those from `first` on of an axis of `whole` positions, which the windows divide.
  WindowAxis(int64_t positions, int64_t window, int64_t layer, int64_t first, int64_t whole)
      : length(positions), size(std::min(window, whole)) {
    const int64_t shift = layer % 2 != 0 && size < whole ? size / 2 : 0;
    before = (first + (shift == 0 ? 0 : size - shift)) % size;
  }
  WindowAxis(int64_t positions, int64_t window, int64_t layer) : WindowAxis(positions, window, layer, 0, positions) {}
  int64_t group(int64_t p) const { return (p + before) / size; }
  int64_t groups() const { return group(length - 1) + 1; }
  int64_t begin(int64_t g) const { return std::max<int64_t>(0, g * size - before); }
  int64_t end(int64_t g) const { return std::min(length, (g + 1) * size - before); }

  int64_t length, size;
  int64_t before;  // positions of the first window that lie before position 0
};

struct WindowGroups {
  explicit WindowGroups(const WindowShape& s)
      : t(s.frames, s.window[0], s.layer, s.first_frame, s.clip_frames ? s.clip_frames : s.frames), h(s.height, s.window[1], s.layer),
        w(s.width, s.window[2], s.layer) {}
  int64_t count() const { return t.groups() * h.groups() * w.groups(); }
  WindowAxis t, h, w;
};

}  // namespace megaslide
