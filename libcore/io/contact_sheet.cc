#include "io/contact_sheet.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace megaslide {

Picture contact_sheet(const std::vector<std::vector<Picture>>& clips, int64_t columns) {
  constexpr int64_t kGutter = 2;
  constexpr uint8_t kBackground = 32;  // dark grey: neither black nor white pictures melt into it
  MS_CHECK(!clips.empty() && columns > 0);
  int64_t cell_w = 1, cell_h = 1, most = 1;
  for (const auto& clip : clips) {
    most = std::max(most, std::min(columns, static_cast<int64_t>(clip.size())));
    for (const Picture& p : clip) {
      cell_w = std::max(cell_w, p.width);
      cell_h = std::max(cell_h, p.height);
    }
  }
  Picture sheet{kGutter + most * (cell_w + kGutter), kGutter + static_cast<int64_t>(clips.size()) * (cell_h + kGutter), {}};
  sheet.rgb.assign(static_cast<size_t>(sheet.width * sheet.height * 3), kBackground);
  for (size_t r = 0; r < clips.size(); ++r) {
    const auto n = static_cast<int64_t>(clips[r].size()), shown = std::min(columns, n);
    for (int64_t c = 0; c < shown; ++c) {
      const int64_t index = shown == 1 ? 0 : (c * (n - 1) + (shown - 1) / 2) / (shown - 1);
      const Picture& p = clips[r][static_cast<size_t>(index)];
      const int64_t x = kGutter + c * (cell_w + kGutter) + (cell_w - p.width) / 2;
      const int64_t y = kGutter + static_cast<int64_t>(r) * (cell_h + kGutter) + (cell_h - p.height) / 2;
      for (int64_t row = 0; row < p.height; ++row)
        std::memcpy(&sheet.rgb[static_cast<size_t>(((y + row) * sheet.width + x) * 3)], &p.rgb[static_cast<size_t>(row * p.width * 3)],
                    static_cast<size_t>(p.width * 3));
    }
  }
  return sheet;
}

}  // namespace megaslide
