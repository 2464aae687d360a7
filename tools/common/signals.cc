#include "common/signals.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace megaslide {
namespace {

std::atomic<int> caught{0};
bool speak = true;
const char* program = "";
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

// The name of the file that is mapped at `address`, into `name`; false where there is none. Only what a signal handler may
// call: the table is read byte by byte, "BEGIN-END rwxp OFFSET DEVICE INODE    NAME" a line.
bool mapped_file(uintptr_t address, char* name, size_t most) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char buffer[4096], text[4096];
  size_t length = 0;
  bool found = false;
  for (ssize_t n; !found && (n = ::read(fd, buffer, sizeof buffer)) > 0;) {
    for (ssize_t i = 0; i < n && !found; ++i) {
      if (buffer[i] != '\n') {
        if (length + 1 < sizeof text) text[length++] = buffer[i];
        continue;
      }
      text[length] = 0;
      length = 0;
      char* end = nullptr;
      const uintptr_t first = std::strtoull(text, &end, 16);
      const uintptr_t last = *end == '-' ? std::strtoull(end + 1, nullptr, 16) : 0;
      const char* path = std::strchr(text, '/');
      found = path != nullptr && address >= first && address < last;
      if (found) std::strncpy(name, path, most - 1);
    }
  }
  ::close(fd);
  return found;
}

// Files are read through mappings, where a disk that fails, or a file that was cut short meanwhile, is this signal.
void on_bus_error(int signal, siginfo_t* info, void*) {
  char name[4096] = {};
  if (!mapped_file(reinterpret_cast<uintptr_t>(info->si_addr), name, sizeof name)) {
    std::signal(signal, SIG_DFL);
    return;  // the access is made again, and ends the program
  }
  const char* const text[] = {program, ": error: read ", name, ": Input/output error, or the file was cut short while it was in use\n",
                              "  remedy: look into the system's log (dmesg), and leave files alone that are in use\n"};
  for (const char* part : text) {
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, part, std::strlen(part));
  }
  ::_exit(1);
}

// Blocks no signal while its handler runs; the handler is to be set.
struct sigaction action_with(int flags) {
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  sigemptyset(&action.sa_mask);
  action.sa_flags = flags;
  return action;
}

}  // namespace

void report_bus_errors(const char* name) {
  program = name;
  struct sigaction action = action_with(SA_SIGINFO);
  action.sa_sigaction = on_bus_error;
  ::sigaction(SIGBUS, &action, nullptr);
}

void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

StopToken catch_stop_signals(bool quiet) {
  speak = !quiet;
  struct sigaction action = action_with(SA_RESTART);
  action.sa_handler = on_stop_signal;
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
