// Results in order, made ahead on threads of their own.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace megaslide {

// next() returns make(0), make(1), ... in this order. Up to `threads` calls run at a time, ahead of the taker, as long as
// what waits stays within `budget` bytes, measured by size(); the item that is taken next is always made. An exception of
// make(i) comes out of the i-th next(). Sizes of items still being made are taken to be that of the largest so far.
template <class T>
class Prefetch {
 public:
  using Make = std::function<T(size_t)>;
  using Size = std::function<int64_t(const T&)>;

  Prefetch(int threads, size_t count, int64_t budget, Make make, Size size)
      : count_(count), budget_(budget), make_(std::move(make)), size_(std::move(size)) {
    for (size_t t = 0; t < std::min(static_cast<size_t>(std::max(threads, 1)), count); ++t) threads_.emplace_back([this] { work(); });
  }
  ~Prefetch() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  T next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_.count(taken_) != 0; });
    auto node = ready_.extract(taken_++);
    waiting_ -= node.mapped().bytes;
    lock.unlock();
    changed_.notify_all();
    if (node.mapped().failure) std::rethrow_exception(node.mapped().failure);
    return std::move(node.mapped().value);
  }

  int64_t most_waiting() const {  // bytes; for tests
    const std::lock_guard lock(mutex_);
    return most_waiting_;
  }

 private:
  struct Item {
    T value{};
    int64_t bytes = 0;
    std::exception_ptr failure;
  };

  bool may_start() const {
    if (stopped_ || begun_ == count_) return true;  // to end
    if (begun_ == taken_) return true;
    // Before the first result nobody knows what an item costs.
    return largest_ > 0 && waiting_ + (making_ + 1) * largest_ <= budget_;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return may_start(); });
      if (stopped_ || begun_ == count_) return;
      const size_t i = begun_++;
      ++making_;
      lock.unlock();
      Item item;
      try {
        item.value = make_(i);
        item.bytes = size_(item.value);
      } catch (...) {
        item.failure = std::current_exception();
      }
      lock.lock();
      --making_;
      largest_ = std::max({largest_, item.bytes, int64_t{1}});
      waiting_ += item.bytes;
      most_waiting_ = std::max(most_waiting_, waiting_);
      ready_.emplace(i, std::move(item));
      changed_.notify_all();
    }
  }

  const size_t count_;
  const int64_t budget_;
  const Make make_;
  const Size size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, Item> ready_;
  size_t begun_ = 0, taken_ = 0;
  int64_t waiting_ = 0, making_ = 0, largest_ = 0, most_waiting_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;  // last: they use everything above
};

}  // namespace megaslide
