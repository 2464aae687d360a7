// A 256-colour palette for GIF: median cut over all pictures of the clip, ordered dither when mapping.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace megaslide::av {

class PaletteMaker {
 public:
  void add(const uint8_t* rgb, int64_t pixels);
  std::array<uint32_t, 256> palette() const;  // 0xffRRGGBB
  // Indices of one picture, row-major.
  void map(const std::array<uint32_t, 256>& palette, const uint8_t* rgb, int64_t width, int64_t height, uint8_t* out, int64_t stride);

 private:
  static constexpr int kBits = 5;
  std::vector<uint64_t> histogram_ = std::vector<uint64_t>(std::size_t{1} << (3 * kBits));
  std::vector<int16_t> nearest_;  // palette index of each cell, -1 not yet known
};

}  // namespace megaslide::av
