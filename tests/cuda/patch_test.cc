#include "kernels/patch/patch.h"

#include "kernels/patch/image_patches.h"
#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using namespace testing_support;

const PatchShape kShapes[] = {{.batch = 0, .channels = 4},
                              {.batch = 1, .channels = 1},
                              {.batch = 2, .channels = 3, .frames = 2, .height = 3, .width = 5},
                              {.batch = 1, .channels = 16, .frames = 3, .height = 2, .width = 7}};

TEST(CudaPatch, MovesEveryElementWhereTheCpuDoes) {
  for (const PatchShape& s : kShapes)
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        const int64_t n = s.elements();
        const std::vector<float> values = normals(n, 1);
        const auto run = [&](auto* gather, auto* scatter, auto* unpatch, auto* unpatch_backward) {
          return [&, gather, scatter, unpatch, unpatch_backward](Stream& stream) {
            Array in(DType::kF32, values, shift), patches = Array::empty(dtype, n, shift), a = Array::empty(DType::kF32, n, shift), b = a, c = a;
            gather(stream, patches.data(), in.floats(), s, dtype);
            scatter(stream, a.floats(), in.floats(), s);
            unpatch(stream, b.floats(), in.floats(), s);
            unpatch_backward(stream, c.floats(), in.floats(), s);
            return Results{patches.values(), a.values(), b.values(), c.values()};
          };
        };
        InlineStream stream;
        EXPECT_EQ(in_every_schedule(run(&cuda::patch_gather, &cuda::patch_scatter, &cuda::unpatchify, &cuda::unpatchify_backward)),
                  run(&cpu::patch_gather, &cpu::patch_scatter, &cpu::unpatchify, &cpu::unpatchify_backward)(stream));
      }
}

// Lines of patches that quads fill and that they do not, pixels left over, more elements than a block has threads.
TEST(CudaPatch, ImagePatchesAreTheCpus) {
  for (const ImagePatches& s : {ImagePatches{.batch = 0, .height = 8, .width = 8, .side = 4}, {.batch = 1, .channels = 1, .height = 1, .width = 1, .side = 1},
                                {.batch = 2, .height = 11, .width = 16, .side = 4}, {.batch = 2, .height = 15, .width = 23, .side = 7},
                                {.batch = 1, .height = 32, .width = 52, .side = 16}, {.batch = 1, .height = 14, .width = 31, .side = 14}})
    for (const DType dtype : kBothTypes)
      for (const int shift : {0, 1}) {
        const std::vector<float> images = normals(s.batch * s.channels * s.height * s.width, 1);
        const auto run = [&](auto* gather) {
          return [&, gather](Stream& stream) {
            Array in(DType::kF32, images, shift), patches = Array::empty(dtype, s.rows() * s.columns(), shift);
            gather(stream, patches.data(), in.floats(), s, dtype);
            return Results{patches.values()};
          };
        };
        InlineStream stream;
        EXPECT_EQ(in_every_schedule(run(&cuda::image_patch_gather)), run(&cpu::image_patch_gather)(stream));
      }
}

// fp64 angles of both, up to 1000: 1e-12 before the rounding to fp32.
TEST(CudaPatch, TimeFeatures) {
  const std::vector<float> times = {0, 1, 999.5F, 417.25F, 1000, -3.5F};
  for (const int64_t batch : {0, 1, 6})
    for (const int64_t width : {2, 10, 256}) {
      const Results r = in_every_schedule([&](Stream& stream) {
        Array out = Array::empty(DType::kF32, batch * width), t(DType::kF32, times);
        cuda::time_features(stream, out.floats(), t.floats(), batch, width);
        return Results{out.values()};
      });
      InlineStream stream;
      std::vector<float> expected(static_cast<size_t>(batch * width));
      time_features(stream, expected.data(), times.data(), batch, width);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(static_cast<double>(r[0][i]), static_cast<double>(expected[i]), 0x1p-24 * std::abs(static_cast<double>(expected[i])) + 1e-12);
    }
}

}  // namespace
}  // namespace megaslide
