#include "common/signals.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <unistd.h>

namespace megaslide {
namespace {

std::atomic<int> caught{0};
bool speak = true;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void on_stop_signal(int signal) {
  const int saved_errno = errno;
  if (caught.exchange(signal) != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);  // delivered when this handler returns
  } else if (speak) {
    const char text[] = "stopping as soon as everything is whole; the same signal again leaves at once\n";
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, sizeof text - 1);
  }
  errno = saved_errno;
}

}  // namespace

void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

StopToken catch_stop_signals(bool quiet) {
  speak = !quiet;
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  return StopToken(&caught);
}

int caught_signal() { return caught.load(); }

void die_by_signal(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);  // not reached unless a debugger swallowed the signal
}

}  // namespace megaslide
