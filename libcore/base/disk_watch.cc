#include "base/disk_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/log.h"

namespace megaslide {
namespace {

struct Operations {
  std::mutex mutex;
  std::list<std::pair<const char*, std::string>> under_way;  // the oldest first
  uint64_t ended = 0;
  HangHandler handler;
};

// Never destroyed: operations may end while the process does.
Operations& operations() {
  static auto& all = *new Operations;
  return all;
}

}  // namespace

DiskOperation::DiskOperation(const char* what, const std::string& path) {
  std::lock_guard lock(operations().mutex);
  place_ = operations().under_way.emplace(operations().under_way.end(), what, path);
}

DiskOperation::~DiskOperation() {
  std::lock_guard lock(operations().mutex);
  operations().under_way.erase(place_);
  ++operations().ended;
}

HangHandler set_hang_handler(HangHandler handler) {
  std::lock_guard lock(operations().mutex);
  std::swap(operations().handler, handler);
  return handler;
}

DiskWatch::DiskWatch(double seconds, std::string remedy) : seconds_(seconds), remedy_(std::move(remedy)) {
  if (seconds_ > 0) thread_ = std::thread([this] { run(); });
}

DiskWatch::~DiskWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DiskWatch::run() {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> limit(seconds_), period(std::min(1.0, seconds_ / 8));
  uint64_t seen = 0;
  auto last = Clock::now(), looked = last;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [&] { return stop_; })) {
    // A process that was itself stopped (Ctrl-Z, a debugger) has not waited for the disk meanwhile.
    const auto now = Clock::now();
    if (now - looked > 8 * period) last += now - looked;
    looked = now;
    std::string waiting;
    HangHandler handler;
    {
      std::lock_guard guard(operations().mutex);
      if (operations().under_way.empty() || operations().ended != seen) {
        seen = operations().ended;
        last = now;
      }
      if (now - last < limit) continue;
      for (const auto& [what, path] : operations().under_way) waiting += fmt::format("\n  {} {}", what, path);
      handler = operations().handler;
    }
    const Error error(fmt::format("the disk has not answered for {:.3g} s:{}", seconds_, waiting), remedy_);
    if (handler) handler(error);
    else log_warning("{}", error.what());
    return;
  }
}

}  // namespace megaslide
