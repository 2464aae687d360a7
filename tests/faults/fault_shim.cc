// Preloaded into a program under test: numbers the file system calls that it makes under one folder, and lets the call of
// one number fail, come back short, kill the process, or hang. Controlled by the environment:
//   FAULT_FOLDER   absolute, without links: calls on paths outside of it are neither counted nor touched
//   FAULT_CALLS    changes (the default: calls that change the folder) or reads
//   FAULT_LOG      file that gets a line "NUMBER NAME PATH [FROM]" for every counted call; FROM of a rename
//   FAULT_AT       number of the call, from 1
//   FAULT_ACTION   an errno name: the call does nothing and fails; short: half of the bytes; kill: SIGKILL before the call;
//                  torn: SIGKILL after half of the bytes; stall: sleep for FAULT_SECONDS before the call; shrink: the
//                  file is cut to nothing once it is mapped, so that reading it is the fault that a bad disk gives
//   FAULT_ONWARDS  1: all later calls fare the same; a full disk fails only what takes space
// Calls that glibc makes to itself (fwrite, a FILE's flush) cannot be seen; the libraries of MegaSlide make none on outputs.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>

namespace {

enum class Action { kNone, kError, kShort, kKill, kTorn, kStall, kShrink };
// Changes: kSpace takes space, kData as well and may come back short, kOther none. The rest are reads.
enum class Kind { kSpace, kData, kOther, kRead, kReadData, kMap };
enum class Fate { kGoes, kFails, kHalf };

std::string environment(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

struct Plan {
  std::string folder = environment("FAULT_FOLDER"), log = environment("FAULT_LOG");
  bool reads = environment("FAULT_CALLS") == "reads", onwards = environment("FAULT_ONWARDS") == "1";
  long at = atol(environment("FAULT_AT").c_str());
  double seconds = atof(environment("FAULT_SECONDS").c_str());
  Action action = Action::kNone;
  int error = 0;

  Plan() {
    const std::string a = environment("FAULT_ACTION");
    const std::pair<const char*, int> errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES},
                                                  {"EROFS", EROFS},   {"ESTALE", ESTALE}, {"EINTR", EINTR},   {"EINVAL", EINVAL}};
    for (const auto& [name, value] : errors)
      if (a == name) action = Action::kError, error = value;
    const std::pair<const char*, Action> actions[] = {{"short", Action::kShort}, {"kill", Action::kKill}, {"torn", Action::kTorn}, {"stall", Action::kStall}, {"shrink", Action::kShrink}};
    for (const auto& [name, value] : actions)
      if (a == name) action = value;
    if (a.empty() || action != Action::kNone) return;
    dprintf(STDERR_FILENO, "fault_shim: FAULT_ACTION %s is unknown\n", a.c_str());
    _exit(125);
  }
};

const Plan& plan() {
  static const Plan p;
  return p;
}

std::string link_target(const std::string& link) {
  char text[4096];
  const long n = syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), text, sizeof text);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : std::string();
}

std::string path_of(int fd) { return link_target("/proc/self/fd/" + std::to_string(fd)); }
std::string path_at(int folder, const char* path) {
  if (!path) return {};
  if (*path == '/') return path;
  return (folder == AT_FDCWD ? link_target("/proc/self/cwd") : path_of(folder)) + "/" + path;
}

bool inside(const std::string& path) {
  const std::string& folder = plan().folder;
  return !folder.empty() && path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

void log_call(long number, const char* name, const std::string& path, const std::string& from) {
  if (plan().log.empty()) return;
  const long fd = syscall(SYS_openat, AT_FDCWD, plan().log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return;
  const std::string line = std::to_string(number) + " " + name + " " + path + (from.empty() ? "" : " ") + from + "\n";
  syscall(SYS_write, fd, line.data(), line.size());
  syscall(SYS_close, fd);
}

[[noreturn]] void die() {
  for (;;) raise(SIGKILL);
}

Fate fate_of(Kind kind, const char* name, const std::string& path, const std::string& from = {}) {
  if ((kind >= Kind::kRead) != plan().reads || !inside(path)) return Fate::kGoes;
  static std::atomic<long> calls{0};
  const long number = ++calls;
  const int kept = errno;
  log_call(number, name, path, from);
  errno = kept;
  if (number != plan().at && !(plan().onwards && plan().at > 0 && number > plan().at)) return Fate::kGoes;
  const bool data = kind == Kind::kData || kind == Kind::kReadData;
  switch (plan().action) {
    case Action::kNone: return Fate::kGoes;
    case Action::kKill: die();
    case Action::kShort:
    case Action::kTorn: return data ? Fate::kHalf : Fate::kGoes;
    case Action::kShrink: return kind == Kind::kMap ? Fate::kHalf : Fate::kGoes;
    case Action::kStall: {
      timespec left{static_cast<time_t>(plan().seconds), 0};
      while (nanosleep(&left, &left) != 0) {
      }
      return Fate::kGoes;
    }
    case Action::kError: break;
  }
  if (plan().onwards && kind == Kind::kOther && (plan().error == ENOSPC || plan().error == EDQUOT)) return Fate::kGoes;
  errno = plan().error;
  return Fate::kFails;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

size_t half(size_t n) { return n > 1 ? n / 2 : n; }

// What a call that moves data does with its result.
ssize_t moved(ssize_t n) {
  if (plan().action == Action::kTorn) die();
  return n;
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }
// A folder is opened in order to be synced.
Kind kind_of_open(int flags) {
  if ((flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != 0) return Kind::kSpace;
  return (flags & O_DIRECTORY) != 0 ? Kind::kOther : Kind::kRead;
}

}  // namespace

#define REAL(name) static const auto real = next<decltype(name)>(#name)
#define FAILS(kind, path) (fate_of(kind, __func__, path) == Fate::kFails)

extern "C" {

#define OPEN(name)                                                       \
  int name(const char* path, int flags, ...) {                           \
    REAL(name);                                                          \
    va_list rest;                                                        \
    va_start(rest, flags);                                               \
    const mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;    \
    va_end(rest);                                                        \
    if (FAILS(kind_of_open(flags), path_at(AT_FDCWD, path))) return -1;  \
    return real(path, flags, mode);                                      \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                   \
  int name(int folder, const char* path, int flags, ...) {             \
    REAL(name);                                                        \
    va_list rest;                                                      \
    va_start(rest, flags);                                             \
    const mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;  \
    va_end(rest);                                                      \
    if (FAILS(kind_of_open(flags), path_at(folder, path))) return -1;  \
    return real(folder, path, flags, mode);                            \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                                      \
  FILE* name(const char* path, const char* mode) {                                                       \
    REAL(name);                                                                                          \
    const Kind kind = mode[0] == 'r' && std::string(mode).find('+') == std::string::npos ? Kind::kRead : Kind::kSpace;  \
    if (FAILS(kind, path_at(AT_FDCWD, path))) return nullptr;                                            \
    return real(path, mode);                                                                             \
  }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int fd, const void* bytes, size_t n) {
  REAL(write);
  switch (fate_of(Kind::kData, __func__, path_of(fd))) {
    case Fate::kGoes: return real(fd, bytes, n);
    case Fate::kFails: return -1;
    case Fate::kHalf: break;
  }
  return moved(real(fd, bytes, half(n)));
}

#define PWRITE(name)                                                     \
  ssize_t name(int fd, const void* bytes, size_t n, off_t at) {          \
    REAL(name);                                                          \
    switch (fate_of(Kind::kData, __func__, path_of(fd))) {               \
      case Fate::kGoes: return real(fd, bytes, n, at);                   \
      case Fate::kFails: return -1;                                      \
      case Fate::kHalf: break;                                           \
    }                                                                    \
    return moved(real(fd, bytes, half(n), at));                          \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int fd, const iovec* parts, int n) {
  REAL(writev);
  static const auto real_write = next<decltype(write)>("write");
  switch (fate_of(Kind::kData, __func__, path_of(fd))) {
    case Fate::kGoes: return real(fd, parts, n);
    case Fate::kFails: return -1;
    case Fate::kHalf: break;
  }
  return moved(n > 0 ? real_write(fd, parts[0].iov_base, half(parts[0].iov_len)) : 0);
}

ssize_t read(int fd, void* bytes, size_t n) {
  REAL(read);
  switch (fate_of(Kind::kReadData, __func__, path_of(fd))) {
    case Fate::kGoes: return real(fd, bytes, n);
    case Fate::kFails: return -1;
    case Fate::kHalf: break;
  }
  return moved(real(fd, bytes, half(n)));
}

#define PREAD(name)                                                      \
  ssize_t name(int fd, void* bytes, size_t n, off_t at) {                \
    REAL(name);                                                          \
    switch (fate_of(Kind::kReadData, __func__, path_of(fd))) {           \
      case Fate::kGoes: return real(fd, bytes, n, at);                   \
      case Fate::kFails: return -1;                                      \
      case Fate::kHalf: break;                                           \
    }                                                                    \
    return moved(real(fd, bytes, half(n), at));                          \
  }
PREAD(pread)
PREAD(pread64)

#define ON_FD(name, parameters, arguments)                  \
  int name parameters {                                     \
    REAL(name);                                             \
    if (FAILS(Kind::kSpace, path_of(fd)))  return -1;       \
    return real arguments;                                  \
  }
ON_FD(fsync, (int fd), (fd))
ON_FD(fdatasync, (int fd), (fd))
ON_FD(sync_file_range, (int fd, off64_t at, off64_t n, unsigned flags), (fd, at, n, flags))
ON_FD(syncfs, (int fd), (fd))
ON_FD(ftruncate, (int fd, off_t n), (fd, n))
ON_FD(ftruncate64, (int fd, off_t n), (fd, n))
ON_FD(fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
ON_FD(fallocate64, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
ON_FD(fchmod, (int fd, mode_t mode), (fd, mode))

// Returns the error instead of setting errno.
#define POSIX_FALLOCATE(name)                                  \
  int name(int fd, off_t at, off_t n) {                        \
    REAL(name);                                                \
    if (FAILS(Kind::kSpace, path_of(fd))) return errno;        \
    return real(fd, at, n);                                    \
  }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

// A file that was read only is closed without a chance to fail. The descriptor is gone also where close reports an error.
int close(int fd) {
  REAL(close);
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || !FAILS(Kind::kOther, path_of(fd))) return real(fd);
  const int error = errno;
  real(fd);
  errno = error;
  return -1;
}

#define ON_PATH(name, kind, place, parameters, arguments)   \
  int name parameters {                                     \
    REAL(name);                                             \
    if (FAILS(kind, place)) return -1;                      \
    return real arguments;                                  \
  }
ON_PATH(mkdir, Kind::kSpace, path_at(AT_FDCWD, path), (const char* path, mode_t mode), (path, mode))
ON_PATH(mkdirat, Kind::kSpace, path_at(folder, path), (int folder, const char* path, mode_t mode), (folder, path, mode))
ON_PATH(rmdir, Kind::kOther, path_at(AT_FDCWD, path), (const char* path), (path))
ON_PATH(unlink, Kind::kOther, path_at(AT_FDCWD, path), (const char* path), (path))
ON_PATH(unlinkat, Kind::kOther, path_at(folder, path), (int folder, const char* path, int flags), (folder, path, flags))
ON_PATH(remove, Kind::kOther, path_at(AT_FDCWD, path), (const char* path), (path))
ON_PATH(truncate, Kind::kSpace, path_at(AT_FDCWD, path), (const char* path, off_t n), (path, n))
ON_PATH(symlink, Kind::kSpace, path_at(AT_FDCWD, path), (const char* target, const char* path), (target, path))
ON_PATH(symlinkat, Kind::kSpace, path_at(folder, path), (const char* target, int folder, const char* path), (target, folder, path))
ON_PATH(link, Kind::kSpace, path_at(AT_FDCWD, path), (const char* from, const char* path), (from, path))
ON_PATH(linkat, Kind::kSpace, path_at(folder, path), (int from_folder, const char* from, int folder, const char* path, int flags),
        (from_folder, from, folder, path, flags))
ON_PATH(statvfs, Kind::kOther, path_at(AT_FDCWD, path), (const char* path, struct statvfs* result), (path, result))
ON_PATH(statvfs64, Kind::kOther, path_at(AT_FDCWD, path), (const char* path, struct statvfs64* result), (path, result))
ON_PATH(stat, Kind::kRead, path_at(AT_FDCWD, path), (const char* path, struct stat* result), (path, result))
ON_PATH(stat64, Kind::kRead, path_at(AT_FDCWD, path), (const char* path, struct stat64* result), (path, result))
ON_PATH(lstat, Kind::kRead, path_at(AT_FDCWD, path), (const char* path, struct stat* result), (path, result))
ON_PATH(lstat64, Kind::kRead, path_at(AT_FDCWD, path), (const char* path, struct stat64* result), (path, result))
ON_PATH(fstat, Kind::kRead, path_of(fd), (int fd, struct stat* result), (fd, result))
ON_PATH(fstat64, Kind::kRead, path_of(fd), (int fd, struct stat64* result), (fd, result))

#define RENAME(name, from_folder, folder, parameters, arguments)                                                          \
  int name parameters {                                                                                                   \
    REAL(name);                                                                                                           \
    if (fate_of(Kind::kSpace, __func__, path_at(folder, to), path_at(from_folder, from)) == Fate::kFails) return -1;      \
    return real arguments;                                                                                                \
  }
RENAME(rename, AT_FDCWD, AT_FDCWD, (const char* from, const char* to), (from, to))
RENAME(renameat, a, b, (int a, const char* from, int b, const char* to), (a, from, b, to))
RENAME(renameat2, a, b, (int a, const char* from, int b, const char* to, unsigned flags), (a, from, b, to, flags))

ssize_t readlink(const char* path, char* text, size_t n) {
  REAL(readlink);
  if (FAILS(Kind::kRead, path_at(AT_FDCWD, path))) return -1;
  return real(path, text, n);
}

DIR* opendir(const char* path) {
  REAL(opendir);
  if (FAILS(Kind::kRead, path_at(AT_FDCWD, path))) return nullptr;
  return real(path);
}

#define READDIR(name, type)                                               \
  type* name(DIR* folder) {                                               \
    REAL(name);                                                           \
    if (FAILS(Kind::kRead, path_of(dirfd(folder)))) return nullptr;       \
    return real(folder);                                                  \
  }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

#define MMAP(name)                                                                                    \
  void* name(void* address, size_t n, int protection, int flags, int fd, off_t at) {                  \
    REAL(name);                                                                                       \
    const Fate fate = fd < 0 ? Fate::kGoes : fate_of(Kind::kMap, __func__, path_of(fd));              \
    if (fate == Fate::kFails) return MAP_FAILED;                                                      \
    void* memory = real(address, n, protection, flags, fd, at);                                       \
    if (fate == Fate::kHalf && syscall(SYS_truncate, path_of(fd).c_str(), 0) != 0) return MAP_FAILED; \
    return memory;                                                                                    \
  }
MMAP(mmap)
MMAP(mmap64)

}  // extern "C"
