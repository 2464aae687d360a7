// Threads for loops whose pieces are fixed by index, so that results do not depend on how many threads there are.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace megaslide {

// A non-owning reference to a callable; valid for the duration of the call it is passed to.
template <class Signature>
class FunctionRef;
template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& f)  // NOLINT: implicit on purpose
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* o, A... a) -> R { return (*static_cast<std::remove_reference_t<F>*>(o))(std::forward<A>(a)...); }) {}
  R operator()(A... a) const { return call_(object_, std::forward<A>(a)...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

// Threads this process may use: the affinity mask and the cgroup's CPU quota, at least 1.
int available_threads();

class ThreadPool {
 public:
  // `threads` counts the caller: a pool of 1 starts none and runs everything inline.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Runs body(begin, end) for [0,grain), [grain,2·grain) … up to n. The pieces depend on n and grain alone; which
  // thread runs one does not. The caller works too. Several threads may call at once; nested calls run inline.
  // The first exception of a piece is rethrown here once the others have ended.
  void parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end)> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
  int size_;
};

}  // namespace megaslide
