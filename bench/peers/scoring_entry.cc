// C entry points for compare_scoring.py: AMT-S and MUSIQ on files with their published names; RGB pictures of bytes in.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>

#include "bench/peers/guarded.h"
#include "vision/amt.h"
#include "vision/musiq.h"

using namespace megaslide;

namespace {
struct Session {
  explicit Session(int threads) : stream(threads) {}
  InlineStream stream;
  std::unique_ptr<const Amt> amt;
  std::unique_ptr<const MusiqNetwork> musiq;
};
}  // namespace

extern "C" {

// kind: "amt" or "musiq". nullptr where the file is not that network's; stderr says why.
void* ms_scoring_open(const char* kind, const char* path, int threads) {
  auto s = std::make_unique<Session>(threads);
  const int failed = guarded([&] {
    const NetworkWeights file = NetworkWeights::open(path);
    if (std::strcmp(kind, "amt") == 0)
      s->amt = std::make_unique<const Amt>(s->stream, file);
    else
      s->musiq = std::make_unique<const MusiqNetwork>(MusiqNetwork::load(s->stream, file));
  });
  return failed ? nullptr : s.release();
}

// out [3,H,W] on the padded size.
int ms_amt_predict(void* session, const uint8_t* a, const uint8_t* b, int64_t h, int64_t w, float* out) {
  auto* s = static_cast<Session*>(session);
  return guarded([&] {
    const HostTensor frame = s->amt->predict(s->stream, a, b, w, h);
    std::memcpy(out, frame.f32(), static_cast<size_t>(frame.bytes()));
  });
}

// NaN after an error.
double ms_musiq_score(void* session, const uint8_t* rgb, int64_t h, int64_t w) {
  auto* s = static_cast<Session*>(session);
  double score = std::nan("");
  guarded([&] { score = s->musiq->score(s->stream, {w, h, {rgb, rgb + 3 * h * w}}); });
  return score;
}
}
