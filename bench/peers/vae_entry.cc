// C entry points for compare_vae.py: a folder with config.json and weights, videos [3,F,H,W], latents [C,T,h,w], fp32.
#include <cstdio>
#include <cstring>

#include "bench/peers/guarded.h"
#include "base/error.h"
#include "model/wan_vae.h"

using namespace megaslide;

namespace {
struct Session {
  Session(int threads, const char* folder, const WanVaeOptions& o) : pool(threads), vae(folder, "bench", o) {}
  ThreadPool pool;
  WanVae vae;
};

TensorView view(const float* p, int64_t c, int64_t t, int64_t h, int64_t w) {
  return {DType::kF32, {c, t, h, w}, reinterpret_cast<const std::byte*>(p)};
}
}  // namespace

extern "C" {

void* ms_vae_open(const char* folder, int threads, int bf16_on) {
  Session* s = nullptr;
  const DType t = bf16_on ? DType::kBF16 : DType::kF32;
  guarded([&] { s = new Session(threads, folder, {.decode_dtype = t, .encode_dtype = t, .tiling = {}}); });
  return s;
}

void ms_vae_close(void* session) { delete static_cast<Session*>(session); }

int ms_vae_encode(void* session, const float* video, int64_t f, int64_t h, int64_t w, float* normalised) {
  auto* s = static_cast<Session*>(session);
  return guarded([&] {
    const HostTensor z = s->vae.encode(s->pool, view(video, 3, f, h, w));
    std::memcpy(normalised, z.f32(), static_cast<size_t>(z.bytes()));
  });
}

int ms_vae_decode(void* session, const float* latent, int64_t t, int64_t h, int64_t w, float* video) {
  auto* s = static_cast<Session*>(session);
  return guarded([&] {
    const HostTensor v = s->vae.decode(s->pool, view(latent, s->vae.channels(), t, h, w));
    std::memcpy(video, v.f32(), static_cast<size_t>(v.bytes()));
  });
}

int64_t ms_vae_working_bytes(void* session, int64_t f, int64_t h, int64_t w) {
  return static_cast<Session*>(session)->vae.working_bytes(f, h, w);
}
}
