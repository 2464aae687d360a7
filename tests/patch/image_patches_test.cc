#include "kernels/patch/image_patches.h"

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

TEST(ImagePatches, EveryPixelOfAWholePatchIsInItsPlace) {
  const ImagePatches s{.batch = 2, .channels = 3, .height = 11, .width = 13, .side = 4};  // 2×3 patches, rows and columns left over
  const std::vector<float> images = normals(s.batch * s.channels * s.height * s.width, 1);
  std::vector<float> patches(static_cast<size_t>(s.rows() * s.columns()), NAN);
  std::vector<bf16> narrow(patches.size());
  InlineStream stream(2);
  image_patch_gather(stream, patches.data(), images.data(), s, DType::kF32);
  image_patch_gather(stream, narrow.data(), images.data(), s, DType::kBF16);
  EXPECT_EQ(s.rows(), 12);
  EXPECT_EQ(s.columns(), 48);
  for (int64_t r = 0; r < s.rows(); ++r)
    for (int64_t c = 0; c < s.columns(); ++c) {
      const int64_t b = r / 6, y = r / 3 % 2, x = r % 3, channel = c / 16, i = c / 4 % 4, j = c % 4;
      const float pixel = images[static_cast<size_t>(((b * 3 + channel) * 11 + 4 * y + i) * 13 + 4 * x + j)];
      const auto at = static_cast<size_t>(r * s.columns() + c);
      ASSERT_EQ(patches[at], pixel) << r << " " << c;
      ASSERT_EQ(narrow[at].bits, to_bf16(pixel).bits) << r << " " << c;
    }
}

}  // namespace
}  // namespace megaslide
