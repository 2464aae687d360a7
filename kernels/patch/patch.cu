#include "kernels/patch/patch.h"

#include "kernels/elements.cuh"
#include "kernels/quads.cuh"
#include "kernels/sinusoid.cuh"

namespace megaslide {
namespace {

// A thread a token's channel, channels fastest: its four elements of the latent, the other way the same.
struct Place {
  int64_t row, latent;  // of the latent: its top left element
  int channel;
};
struct Patches {
  int channels, frames, height, width;
  int64_t count;
  explicit Patches(const PatchShape& s)
      : channels(static_cast<int>(s.channels)), frames(static_cast<int>(s.frames)), height(static_cast<int>(s.height)),
        width(static_cast<int>(s.width)), count(count32(s.rows() * s.channels, "tokens times channels")) {}
  __device__ int line() const { return 2 * width; }  // of the latent
  __device__ Place place(int i) const {
    const int row = i / channels, c = i % channels, x = row % width, y = row / width % height, f = row / (width * height) % frames,
              b = row / (width * height * frames);
    const int64_t plane = ((int64_t{b} * channels + c) * frames + f) * height + y;
    return {row, (2 * plane * width + x) * 2, c};
  }
};

template <class T>
__global__ void __launch_bounds__(256) patch_gather_kernel(T* patches, const float* latent, Patches g, bool aligned) {
  const int64_t i = element_index();
  if (i >= g.count) return;
  const int64_t at = g.place(static_cast<int>(i)).latent;
  store_quad(patches + 4 * i, {{latent[at], latent[at + 1], latent[at + g.line()], latent[at + g.line() + 1]}}, 4, aligned);
}

__global__ void __launch_bounds__(256) patch_scatter_kernel(float* latent, const float* patches, Patches g, bool aligned) {
  const int64_t i = element_index();
  if (i >= g.count) return;
  const int64_t at = g.place(static_cast<int>(i)).latent;
  const Quad q = load_quad(patches + 4 * i, 4, aligned);
  latent[at] = q.v[0], latent[at + 1] = q.v[1], latent[at + g.line()] = q.v[2], latent[at + g.line() + 1] = q.v[3];
}

__global__ void __launch_bounds__(256) unpatchify_kernel(float* latent, const float* rows, Patches g) {
  const int64_t i = element_index();
  if (i >= g.count) return;
  const Place p = g.place(static_cast<int>(i));
  const float* from = rows + p.row * 4 * g.channels + p.channel;
  float* to = latent + p.latent;
  to[0] = from[0], to[1] = from[g.channels], to[g.line()] = from[2 * g.channels], to[g.line() + 1] = from[3 * g.channels];
}

__global__ void __launch_bounds__(256) unpatchify_backward_kernel(float* drows, const float* dlatent, Patches g) {
  const int64_t i = element_index();
  if (i >= g.count) return;
  const Place p = g.place(static_cast<int>(i));
  const float* from = dlatent + p.latent;
  float* to = drows + p.row * 4 * g.channels + p.channel;
  to[0] = from[0], to[g.channels] = from[1], to[2 * g.channels] = from[g.line()], to[3 * g.channels] = from[g.line() + 1];
}

__global__ void __launch_bounds__(256) time_features_kernel(float* features, const float* timesteps, int64_t batch, int64_t half) {
  const int64_t i = element_index();
  if (i >= batch * half) return;
  const int64_t b = i / half, k = i % half;
  const double t = timesteps[b];
  const Sinusoid s(fabs(t) * frequency(static_cast<double>(k) / static_cast<double>(half)));
  features[2 * b * half + k] = static_cast<float>(s.cosine);
  features[(2 * b + 1) * half + k] = static_cast<float>(t < 0 ? -s.sine : s.sine);
}

}  // namespace

namespace cuda {

void patch_gather(Stream& stream, void* patches, const float* latent, PatchShape shape, DType dtype) {
  const Patches g(shape);
  if (g.count == 0) return;
  by_type(dtype, [&]<class T>(T*) {
    auto* to = static_cast<T*>(patches);
    prim::launch(patch_gather_kernel<T>, element_grid(g.count), element_block(), 0, stream, to, latent, g, quads_aligned(4, to));
  });
}

void patch_scatter(Stream& stream, float* latent, const float* patches, PatchShape shape) {
  const Patches g(shape);
  if (g.count == 0) return;
  prim::launch(patch_scatter_kernel, element_grid(g.count), element_block(), 0, stream, latent, patches, g, quads_aligned(4, patches));
}

void unpatchify(Stream& stream, float* latent, const float* rows, PatchShape shape) {
  const Patches g(shape);
  if (g.count == 0) return;
  prim::launch(unpatchify_kernel, element_grid(g.count), element_block(), 0, stream, latent, rows, g);
}

void unpatchify_backward(Stream& stream, float* drows, const float* dlatent, PatchShape shape) {
  const Patches g(shape);
  if (g.count == 0) return;
  prim::launch(unpatchify_backward_kernel, element_grid(g.count), element_block(), 0, stream, drows, dlatent, g);
}

void time_features(Stream& stream, float* features, const float* timesteps, int64_t batch, int64_t width) {
  const int64_t half = width / 2;
  if (batch * half == 0) return;
  prim::launch(time_features_kernel, element_grid(batch * half), element_block(), 0, stream, features, timesteps, batch, half);
}

}  // namespace cuda
}  // namespace megaslide
