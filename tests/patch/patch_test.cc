#include "kernels/patch/patch.h"

#include "kernels/memory/memory.h"
#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

const PatchShape kShape{.batch = 2, .channels = 3, .frames = 2, .height = 3, .width = 4};

int64_t latent_index(int64_t b, int64_t c, int64_t f, int64_t y, int64_t x) {
  return (((b * kShape.channels + c) * kShape.frames + f) * 2 * kShape.height + y) * 2 * kShape.width + x;
}

// Spec wan.md A.2 and A.9, element by element.
template <class Visit>
void for_elements(Visit visit) {
  for (int64_t b = 0; b < kShape.batch; ++b)
    for (int64_t f = 0; f < kShape.frames; ++f)
      for (int64_t y = 0; y < kShape.height; ++y)
        for (int64_t x = 0; x < kShape.width; ++x)
          for (int64_t c = 0; c < kShape.channels; ++c)
            for (int64_t ph = 0; ph < 2; ++ph)
              for (int64_t pw = 0; pw < 2; ++pw) {
                const int64_t row = ((b * kShape.frames + f) * kShape.height + y) * kShape.width + x;
                visit(static_cast<size_t>(latent_index(b, c, f, 2 * y + ph, 2 * x + pw)),
                      static_cast<size_t>(row * 4 * kShape.channels + c * 4 + ph * 2 + pw),
                      static_cast<size_t>(row * 4 * kShape.channels + (ph * 2 + pw) * kShape.channels + c));
              }
}

TEST(Patch, OrdersOfTheSpec) {
  InlineStream stream(2);
  const int64_t n = kShape.elements();
  const size_t size = static_cast<size_t>(n);
  const std::vector<float> latent = normals(n, 1), rows = normals(n, 2);
  std::vector<float> patches(size), back(size), out(size), drows(size);
  std::vector<bf16> narrow(size);
  patch_gather(stream, patches.data(), latent.data(), kShape, DType::kF32);
  patch_gather(stream, narrow.data(), latent.data(), kShape, DType::kBF16);
  patch_scatter(stream, back.data(), rows.data(), kShape);
  unpatchify(stream, out.data(), rows.data(), kShape);
  unpatchify_backward(stream, drows.data(), latent.data(), kShape);
  for_elements([&](size_t l, size_t patch, size_t head) {
    EXPECT_EQ(patches[patch], latent[l]);
    EXPECT_EQ(narrow[patch], to_bf16(latent[l]));
    EXPECT_EQ(back[l], rows[patch]);
    EXPECT_EQ(out[l], rows[head]);
    EXPECT_EQ(drows[head], latent[l]);
  });
}

TEST(TimeFeatures, VectorOfTheSpec) {
  InlineStream stream;
  const float t = 999;
  std::vector<float> s(256);
  time_features(stream, s.data(), &t, 1, 256);
  EXPECT_NEAR(s[0], 0.99964985, 1e-7);
  EXPECT_NEAR(s[128], -0.02646075, 1e-7);
  EXPECT_NEAR(s[1], 0.96378248, 1e-7);
  EXPECT_NEAR(s[129], -0.26668958, 1e-7);
  EXPECT_NEAR(s[2], -0.39899176, 1e-7);
  EXPECT_NEAR(s[130], -0.91695451, 1e-7);
  EXPECT_NEAR(s[64], -0.84446970, 1e-7);
  EXPECT_NEAR(s[192], -0.53560333, 1e-7);
  EXPECT_NEAR(s[127], 0.99424316, 1e-7);
  EXPECT_NEAR(s[255], 0.10714724, 1e-7);
}

TEST(Memory, FillCopyAddWiden) {
  InlineStream stream(2);
  const int64_t n = 70001;  // more than one piece
  const std::vector<float> a = normals(n, 1), b = normals(n, 2);
  std::vector<float> sum = a, copy(a.size()), wide(a.size());
  add_in_place(stream, sum.data(), b.data(), n);
  copy_memory(stream, copy.data(), a.data(), n * 4);
  const std::vector<bf16> narrow = rounded(a);
  widen_float(stream, wide.data(), narrow.data(), n, DType::kBF16);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(sum[i], a[i] + b[i]);
  EXPECT_EQ(copy, a);
  EXPECT_EQ(wide, widened(narrow));
  fill_zero(stream, copy.data(), (n - 1) * 4);
  EXPECT_EQ(copy[0], 0.0F);
  EXPECT_EQ(copy[static_cast<size_t>(n - 2)], 0.0F);
  EXPECT_EQ(copy.back(), a.back());
}

}  // namespace
}  // namespace megaslide
