// Kernel<Signature>: one operator, one signature, three entries.
//
//   using NormForward = void(Stream&, float* out /*(N,C)*/, const float* in /*(N,C)*/, int64_t n, int64_t c);
//   namespace cpu { NormForward norm_forward; }               // op.cpu.cc
//   namespace cuda { MS_OPTIONAL NormForward norm_forward; }  // op.cu
//   inline Cost norm_forward_cost(float*, const float*, int64_t n, int64_t c) { ... }
//   inline constexpr Kernel<NormForward> norm_forward{"norm_forward", &cpu::norm_forward, &cuda::norm_forward, &norm_forward_cost};
//
// A call queues the work on the stream; arguments are copied, so they are pointers and plain values. Declared inside
// namespace megaslide; the entries of one signature cannot drift apart, since they would not compile.
#pragma once
#include <type_traits>

#include "base/error.h"
#include "base/optional_entry.h"
#include "kernels/stream.h"

namespace megaslide {

template <class Signature>
struct Kernel;

template <class... A>
struct Kernel<void(Stream&, A...)> {
  const char* name;                // static storage; appears in traces and errors
  void (*cpu)(Stream&, A...);      // runs on the stream's thread, may use stream.parallel_for
  void (*cuda)(Stream&, A...);     // the same, and launches on stream.native(); nullptr in a CPU build
  Cost (*cost)(A...);

  void operator()(Stream& stream, std::type_identity_t<A>... args) const {
    const bool on_cuda = stream.backend() == Backend::kCuda;
    MS_CHECK(!on_cuda || cuda != nullptr, "{} has no CUDA entry in this build", name);
    stream.enqueue(name, cost(args...), [&stream, run = on_cuda ? cuda : cpu, args...] { run(stream, args...); });
  }
};

// Bytes of the workspace that an operator's entries take, each its own; `stream` says whose are wanted. Both are known
// to every program, since the plan for a GPU is made without one.
template <class... A>
struct WorkspaceSize {
  int64_t (*cpu)(A...);
  int64_t (*cuda)(A...);

  int64_t operator()(const Stream& stream, std::type_identity_t<A>... args) const {
    return (stream.target() == Backend::kCuda ? cuda : cpu)(args...);
  }
};
template <class... A>
WorkspaceSize(int64_t (*)(A...), int64_t (*)(A...)) -> WorkspaceSize<A...>;

}  // namespace megaslide
