// C entry points for compare_vit.py: the image networks of eval-vbench on files with their published names; pixels [N,3,H,W], fp32.
#include <cstdio>
#include <cstring>
#include <functional>

#include "vision/clip.h"
#include "vision/dino.h"
#include "vision/viclip.h"

using namespace megaslide;

namespace {

struct Session {
  explicit Session(int threads) : stream(threads) {}
  InlineStream stream;
  std::function<HostTensor(Stream&, const HostTensor&)> features;
};

template <class Network, class Features>
std::function<HostTensor(Stream&, const HostTensor&)> network(Stream& stream, const char* file, DType dtype, Features features) {
  const auto n = std::make_shared<const Network>(Network::load(stream, NetworkWeights::open(file), dtype));
  return [n, features](Stream& s, const HostTensor& pixels) { return features(*n, s, pixels); };
}

}  // namespace

extern "C" {

// kind: "dino", "clip" or "viclip". nullptr where the file is not that network's; stderr says why.
void* ms_vit_open(const char* kind, const char* file, int threads, int bf16) {
  try {
    auto s = std::make_unique<Session>(threads);
    const DType dtype = bf16 != 0 ? DType::kBF16 : DType::kF32;
    const std::string name = kind;
    if (name == "dino")
      s->features = network<DinoNetwork>(s->stream, file, dtype, [](const auto& n, Stream& on, const HostTensor& p) { return n.features(on, p); });
    else if (name == "clip")
      s->features = network<ClipNetwork>(s->stream, file, dtype, [](const auto& n, Stream& on, const HostTensor& p) { return n.image_features(on, p); });
    else
      s->features = network<ViclipNetwork>(s->stream, file, dtype, [](const auto& n, Stream& on, const HostTensor& p) { return n.video_features(on, p); });
    return s.release();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return nullptr;
  }
}

void ms_vit_features(void* session, const float* pixels, int64_t n, int64_t height, int64_t width, float* features) {
  auto* s = static_cast<Session*>(session);
  HostTensor p(DType::kF32, {n, 3, height, width});
  std::memcpy(p.data(), pixels, static_cast<size_t>(p.bytes()));
  const HostTensor f = s->features(s->stream, p);
  std::memcpy(features, f.data(), static_cast<size_t>(f.bytes()));
}
}
