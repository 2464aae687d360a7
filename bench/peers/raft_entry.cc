// C entry points for compare_raft.py: pairs of RGB pictures of bytes in, the padded flow [2,H,W] out.
#include <cstdio>
#include <cstring>

#include "bench/peers/guarded.h"
#include "base/error.h"
#include "vision/raft.h"

using namespace megaslide;

namespace {
struct Session {
  Session(const char* path, int threads) : stream(threads), raft(Raft::open(stream, path)) {}
  InlineStream stream;
  Raft raft;
};
}  // namespace

extern "C" {

void* ms_raft_open(const char* path, int threads) {
  Session* s = nullptr;
  guarded([&] { s = new Session(path, threads); });
  return s;
}

void ms_raft_close(void* session) { delete static_cast<Session*>(session); }

int ms_raft_flow(void* session, const uint8_t* a, const uint8_t* b, int64_t h, int64_t w, int iterations, float* flow) {
  auto* s = static_cast<Session*>(session);
  return guarded([&] {
    const RaftFrame first = s->raft.frame(s->stream, a, w, h), second = s->raft.frame(s->stream, b, w, h);
    const HostTensor f = s->raft.flow(s->stream, first, second, iterations);
    std::memcpy(flow, f.f32(), static_cast<size_t>(f.bytes()));
  });
}
}
