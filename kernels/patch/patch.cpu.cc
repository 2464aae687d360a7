#include "kernels/patch/patch.h"

#include <cmath>

namespace megaslide::cpu {

namespace {

// visit(row, latent offset of the token's top left element, channel) for every token of a grid line and every channel;
// a piece is a line of the grid.
template <class Visit>
void for_tokens(Stream& stream, const PatchShape& s, Visit visit) {
  const int64_t lines = s.batch * s.frames * s.height, plane = 4 * s.height * s.width;
  stream.parallel_for(lines, 8, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t y = line % s.height, f = line / s.height % s.frames, b = line / (s.height * s.frames);
      for (int64_t c = 0; c < s.channels; ++c) {
        const int64_t corner = ((b * s.channels + c) * s.frames + f) * plane + 4 * y * s.width;
        for (int64_t x = 0; x < s.width; ++x) visit(line * s.width + x, corner + 2 * x, c);
      }
    }
  });
}

inline void put(float* p, float v) { *p = v; }
inline void put(bf16* p, float v) { *p = to_bf16(v); }

template <class T>
void gather(Stream& stream, T* patches, const float* latent, const PatchShape& s) {
  const int64_t line = 2 * s.width;  // of the latent
  for_tokens(stream, s, [&](int64_t row, int64_t at, int64_t c) {
    T* to = patches + (row * s.channels + c) * 4;
    put(to, latent[at]);
    put(to + 1, latent[at + 1]);
    put(to + 2, latent[at + line]);
    put(to + 3, latent[at + line + 1]);
  });
}

}  // namespace

void patch_gather(Stream& stream, void* patches, const float* latent, PatchShape shape, DType dtype) {
  if (dtype == DType::kBF16)
    gather(stream, static_cast<bf16*>(patches), latent, shape);
  else
    gather(stream, static_cast<float*>(patches), latent, shape);
}

void patch_scatter(Stream& stream, float* latent, const float* patches, PatchShape shape) {
  const int64_t line = 2 * shape.width;
  for_tokens(stream, shape, [&](int64_t row, int64_t at, int64_t c) {
    const float* from = patches + (row * shape.channels + c) * 4;
    latent[at] = from[0];
    latent[at + 1] = from[1];
    latent[at + line] = from[2];
    latent[at + line + 1] = from[3];
  });
}

void unpatchify(Stream& stream, float* latent, const float* rows, PatchShape shape) {
  const int64_t line = 2 * shape.width, channels = shape.channels;
  for_tokens(stream, shape, [&](int64_t row, int64_t at, int64_t c) {
    const float* from = rows + row * 4 * channels + c;
    latent[at] = from[0];
    latent[at + 1] = from[channels];
    latent[at + line] = from[2 * channels];
    latent[at + line + 1] = from[3 * channels];
  });
}

void unpatchify_backward(Stream& stream, float* drows, const float* dlatent, PatchShape shape) {
  const int64_t line = 2 * shape.width, channels = shape.channels;
  for_tokens(stream, shape, [&](int64_t row, int64_t at, int64_t c) {
    float* to = drows + row * 4 * channels + c;
    to[0] = dlatent[at];
    to[channels] = dlatent[at + 1];
    to[2 * channels] = dlatent[at + line];
    to[3 * channels] = dlatent[at + line + 1];
  });
}

void time_features(Stream&, float* features, const float* timesteps, int64_t batch, int64_t width) {
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
    for (int64_t b = 0; b < batch; ++b) {
      const double angle = static_cast<double>(timesteps[b]) * frequency;
      features[b * width + i] = static_cast<float>(std::cos(angle));
      features[b * width + half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace megaslide::cpu
