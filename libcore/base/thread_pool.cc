#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace megaslide {
namespace {
thread_local bool inside_piece = false;

// cgroup v2 "max 100000" or "200000 100000".
int cgroup_threads() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  try {
    return std::max(1, static_cast<int>(std::stod(quota) / period + 0.5));
  } catch (const std::exception&) {
    return 1 << 20;
  }
}
}  // namespace

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int n = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
  return std::max(1, std::min(n, cgroup_threads()));
}

// One loop in flight. Pieces are handed out by an atomic counter; `running` counts threads inside.
struct Loop {
  FunctionRef<void(int64_t, int64_t)> body;
  int64_t n, grain, pieces;
  std::atomic<int64_t> next{0}, done{0};
  std::exception_ptr error;
  std::mutex mutex;
  std::condition_variable finished;
  int users = 0;  // pool threads holding a reference; guarded by the pool's mutex

  Loop(FunctionRef<void(int64_t, int64_t)> b, int64_t count, int64_t g)
      : body(b), n(count), grain(g), pieces((count + g - 1) / g) {}

  void work() {
    inside_piece = true;
    for (;;) {
      const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= pieces) break;
      try {
        body(i * grain, std::min(n, (i + 1) * grain));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) {
        std::lock_guard lock(mutex);
        finished.notify_all();
      }
    }
    inside_piece = false;
  }
};

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable wake, idle;
  std::deque<Loop*> loops;
  bool stop = false;
  std::vector<std::thread> threads;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || !loops.empty(); });
      if (stop) return;
      Loop* loop = loops.front();
      if (loop->next.load(std::memory_order_relaxed) >= loop->pieces) {
        loops.pop_front();
        continue;
      }
      ++loop->users;
      lock.unlock();
      loop->work();
      lock.lock();
      if (--loop->users == 0) idle.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()), size_(std::max(1, threads)) {
  for (int i = 1; i < size_; ++i) state_->threads.emplace_back([s = state_.get()] { s->run(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (auto& t : state_->threads) t.join();
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (n <= 0) return;
  MS_CHECK(grain > 0);
  if (size_ == 1 || n <= grain || inside_piece) {
    for (int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain));
    return;
  }
  Loop loop(body, n, grain);
  {
    std::lock_guard lock(state_->mutex);
    state_->loops.push_back(&loop);
  }
  if (loop.pieces > 2) state_->wake.notify_all();
  else state_->wake.notify_one();
  loop.work();
  {
    std::unique_lock lock(loop.mutex);
    loop.finished.wait(lock, [&] { return loop.done.load(std::memory_order_acquire) == loop.pieces; });
  }
  {
    // No pool thread may still look at this loop once it leaves the stack.
    std::unique_lock lock(state_->mutex);
    std::erase(state_->loops, &loop);
    state_->idle.wait(lock, [&] { return loop.users == 0; });
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace megaslide
