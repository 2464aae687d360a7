// Kernel<Signature>: one operator, one signature, three entries.
//
//   using NormForward = void(Stream&, float* out /*(N,C)*/, const float* in /*(N,C)*/, int64_t n, int64_t c);
//   namespace cpu { NormForward norm_forward; }        // op.cpu.cc
//   namespace cuda { NormForward norm_forward; }       // op.cu, in CUDA builds
//   inline Cost norm_forward_cost(float*, const float*, int64_t n, int64_t c) { ... }
//   inline constexpr Kernel<NormForward> norm_forward{"norm_forward", &cpu::norm_forward, MS_CUDA(norm_forward), &norm_forward_cost};
//
// A call queues the work on the stream; arguments are copied, so they are pointers and plain values. Declared inside
// namespace megaslide; the entries of one signature cannot drift apart, since they would not compile.
#pragma once
#include <type_traits>

#include "base/error.h"
#include "kernels/stream.h"

#ifdef MEGASLIDE_CUDA
#define MS_CUDA(name) &cuda::name
#else
#define MS_CUDA(name) nullptr
#endif

namespace megaslide {

template <class Signature>
struct Kernel;

template <class... A>
struct Kernel<void(Stream&, A...)> {
  const char* name;                // static storage; appears in traces and errors
  void (*cpu)(Stream&, A...);      // runs on the stream's thread, may use stream.parallel_for
  void (*cuda)(Stream&, A...);     // launches on stream.native(); nullptr in a CPU build
  Cost (*cost)(A...);

  void operator()(Stream& stream, std::type_identity_t<A>... args) const {
    if (stream.backend() == Backend::kCuda) {
      MS_CHECK(cuda != nullptr, "{} has no CUDA entry in this build", name);
      cuda(stream, args...);
      return;
    }
    stream.enqueue(name, cost(args...), [&stream, run = cpu, args...] { run(stream, args...); });
  }
};

}  // namespace megaslide
