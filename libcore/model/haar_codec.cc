#include "model/haar_codec.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr size_t kBlock = 64;  // samples of a 4×4×4 block, index (t·4 + h)·4 + w
using Block = std::array<float, kBlock>;

// In place along one axis. The matrix of the four functions is symmetric and orthonormal: its own inverse.
void transform_axis(Block& b, size_t stride) {
  for (size_t i = 0; i < kBlock; ++i) {
    if (i / stride % 4 != 0) continue;
    float &a = b[i], &c = b[i + stride], &d = b[i + 2 * stride], &e = b[i + 3 * stride];
    const float p = a + c, q = a - c, r = d + e, s = d - e;
    a = 0.5f * (p + r);
    c = 0.5f * (p - r);
    d = 0.5f * (q + s);
    e = 0.5f * (q - s);
  }
}

void transform(Block& b) {
  transform_axis(b, 1);
  transform_axis(b, 4);
  transform_axis(b, 16);
}

size_t coefficient(const HaarChannel& c) {
  const int at = (c.t * 4 + c.h) * 4 + c.w;
  return static_cast<size_t>(at);
}

struct Sizes {
  int64_t frames, height, width;   // of the video
  int64_t latent_frames, h, w;     // of the latent
  int64_t pixels() const { return frames * height * width; }
  int64_t cells() const { return latent_frames * h * w; }
};

// Row-major offset of sample (t, y, x) of block (bt, by, bx) within one colour plane of the video; frames before the
// first are the first.
int64_t sample_offset(const Sizes& s, int64_t bt, int64_t by, int64_t bx, int64_t t, int64_t y, int64_t x) {
  const int64_t frame = std::max<int64_t>(bt * 4 + t - 3, 0);
  return (frame * s.height + by * 4 + y) * s.width + bx * 4 + x;
}

void encode_block(const Sizes& s, const float* video, int64_t bt, int64_t by, int64_t bx, float* mean, float* normalised) {
  std::array<Block, 3> planes;
  size_t i = 0;
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t y = 0; y < 4; ++y)
      for (int64_t x = 0; x < 4; ++x, ++i) {
        const float* at = video + sample_offset(s, bt, by, bx, t, y, x);
        const float r = at[0], g = at[s.pixels()], b = at[2 * s.pixels()];
        const float luma = 0.299f * r + 0.587f * g + 0.114f * b;
        planes[0][i] = luma;
        planes[1][i] = (b - luma) / 1.772f;
        planes[2][i] = (r - luma) / 1.402f;
      }
  for (Block& p : planes) transform(p);
  const int64_t cell = (bt * s.h + by) * s.w + bx;
  for (size_t c = 0; c < kHaarTable.size(); ++c) {
    const HaarChannel& k = kHaarTable[c];
    const float v = planes[static_cast<size_t>(k.plane)][coefficient(k)];
    mean[static_cast<int64_t>(c) * s.cells() + cell] = v;
    normalised[static_cast<int64_t>(c) * s.cells() + cell] = (v - k.mean) / k.deviation;
  }
}

void decode_block(const Sizes& s, const float* latent, int64_t bt, int64_t by, int64_t bx, float* video) {
  std::array<Block, 3> planes{};
  const int64_t cell = (bt * s.h + by) * s.w + bx;
  for (size_t c = 0; c < kHaarTable.size(); ++c) {
    const HaarChannel& k = kHaarTable[c];
    planes[static_cast<size_t>(k.plane)][coefficient(k)] = latent[static_cast<int64_t>(c) * s.cells() + cell] * k.deviation + k.mean;
  }
  for (Block& p : planes) transform(p);
  for (int64_t t = bt == 0 ? 3 : 0; t < 4; ++t)
    for (int64_t y = 0; y < 4; ++y)
      for (int64_t x = 0; x < 4; ++x) {
        const auto i = static_cast<size_t>((t * 4 + y) * 4 + x);
        const float luma = planes[0][i], r = luma + 1.402f * planes[2][i], b = luma + 1.772f * planes[1][i];
        float* at = video + sample_offset(s, bt, by, bx, t, y, x);
        at[0] = r;
        at[s.pixels()] = (luma - 0.299f * r - 0.114f * b) / 0.587f;
        at[2 * s.pixels()] = b;
      }
}

// Runs f(bt, by, bx) for every block, rows of blocks in parallel: each writes its own cells only.
template <class F>
void for_each_block(ThreadPool& pool, const Sizes& s, F&& f) {
  pool.parallel_for(s.latent_frames * s.h, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t bx = 0; bx < s.w; ++bx) f(row / s.h, row % s.h, bx);
  });
}

}  // namespace

VideoCodec::Encoded HaarCodec::encode_moments(ThreadPool& pool, const TensorView& video) const {
  check_video_shape(*this, video);
  const int64_t f = video.shape[1], height = video.shape[2], width = video.shape[3];
  const Sizes s{f, height, width, (f - 1) / 4 + 1, height / 4, width / 4};
  const Shape shape = {kHaarChannels, s.latent_frames, s.h, s.w};
  Encoded out{HostTensor(DType::kF32, shape), HostTensor(DType::kF32, shape), HostTensor(DType::kF32, shape)};
  const auto* pixels = reinterpret_cast<const float*>(video.data);
  float *mean = out.mean.f32(), *normalised = out.normalised.f32();
  for_each_block(pool, s, [&](int64_t bt, int64_t by, int64_t bx) { encode_block(s, pixels, bt, by, bx, mean, normalised); });
  std::fill_n(out.logvar.f32(), out.logvar.elements(), kLogVariance);
  return out;
}

HostTensor HaarCodec::decode(ThreadPool& pool, const TensorView& latent) const {
  check_latent_shape(*this, latent);
  const int64_t t = latent.shape[1], h = latent.shape[2], w = latent.shape[3];
  const Sizes s{4 * (t - 1) + 1, 4 * h, 4 * w, t, h, w};
  HostTensor video(DType::kF32, {3, s.frames, s.height, s.width});
  const auto* cells = reinterpret_cast<const float*>(latent.data);
  float* pixels = video.f32();
  for_each_block(pool, s, [&](int64_t bt, int64_t by, int64_t bx) { decode_block(s, cells, bt, by, bx, pixels); });
  return video;
}

}  // namespace megaslide
