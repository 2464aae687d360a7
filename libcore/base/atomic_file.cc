#include "base/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

std::string strip_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Error write_error(const std::string& path, int error, int64_t written, int64_t expected) {
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return system_error("write", path, error);
  std::string needed = expected > written ? format_bytes(expected - written) + " more needed" : "more needed";
  int64_t available = 0;
  try {
    available = free_space(path);
  } catch (const Error&) {
    // The figure is an extra; the write error is what matters.
  }
  Error e = system_error("write", path, error,
                         error == EFBIG ? "raise the limit on file sizes (ulimit -f)"
                                        : "free space on that file system or write to another one");
  return Error(fmt::format("{} after {} ({}, {} free)", e.message(), format_bytes(written), needed, format_bytes(available)),
               e.remedy());
}

int open_new(const std::string& path, int extra) {
  int fd;
  do fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | extra, 0666);
  while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double x = static_cast<double>(bytes);
  int unit = 0;
  for (; x >= 999.5 && unit < 5; ++unit) x /= 1000;
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", x, x < 9.995 ? 2 : x < 99.95 ? 1 : 0, kUnits[unit]);
}

FileWriter::FileWriter(const std::string& path, int64_t expected_bytes) : path_(path), expected_(expected_bytes) {
  fd_ = open_new(path, O_TRUNC);
  if (fd_ < 0) {
    const int error = errno;
    throw system_error("create", path, error,
                       error == ENOENT   ? "create the folder first"
                       : error == EACCES || error == EROFS ? "choose a folder that you may write to"
                                                           : "");
  }
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

FileWriter::FileWriter(FileWriter&& other) noexcept { *this = std::move(other); }

FileWriter& FileWriter::operator=(FileWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(written_, other.written_);
  std::swap(expected_, other.expected_);
  return *this;
}

void FileWriter::write(std::span<const std::byte> bytes) {
  MS_CHECK(fd_ >= 0, "{} is not open", path_);
  while (!bytes.empty()) {
    // Linux moves at most 2 GiB a call.
    const ssize_t n = ::write(fd_, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (n < 0) {
      if (errno == EINTR) continue;
      throw write_error(path_, errno, written_, expected_);
    }
    written_ += n;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void FileWriter::sync() {
  MS_CHECK(fd_ >= 0, "{} is not open", path_);
  if (::fsync(fd_) != 0) throw write_error(path_, errno, written_, expected_);
}

void FileWriter::close() {
  if (fd_ < 0) return;
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) throw write_error(path_, errno, written_, expected_);
}

AtomicPath::AtomicPath(const std::string& path)
    : path_(path), temporary_(fmt::format("{}.tmp-{}", path, ::getpid())) {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    throw Error(fmt::format("write {}: it exists and is not a regular file", path), "choose another name");
  ::unlink(temporary_.c_str());
}

AtomicPath::~AtomicPath() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicPath::commit() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw system_error("rename " + temporary_ + " to", path_, errno);
  committed_ = true;
  fsync_directory(parent_directory(path_));
}

void AtomicFile::commit() {
  writer_.sync();
  writer_.close();
  target_.commit();
}

AtomicDirectory::AtomicDirectory(const std::string& path, bool replace)
    : path_(strip_slashes(path)), temporary_(path_ + ".tmp"), replace_(replace) {
  std::error_code ec;
  if (fs::exists(path_, ec)) {
    if (!fs::is_directory(path_, ec))
      throw Error(fmt::format("{} exists and is not a folder", path_), "choose another name");
    if (!replace_ && !fs::is_empty(path_, ec))
      throw Error(fmt::format("{} exists and is not empty", path_), "choose another folder, or remove this one");
  }
  if (fs::exists(temporary_, ec)) {
    log_warning("removing {}, left by a run that was stopped", temporary_);
    fs::remove_all(temporary_, ec);
    if (ec) throw system_error("remove", temporary_, ec.value());
  }
  fs::create_directories(temporary_, ec);
  if (ec) throw system_error("create folder", temporary_, ec.value(), "choose a place that you may write to");
}

AtomicDirectory::~AtomicDirectory() {
  if (committed_) return;
  std::error_code ec;
  fs::remove_all(temporary_, ec);
}

void AtomicDirectory::commit() {
  for (const auto& entry : fs::recursive_directory_iterator(temporary_))
    if (entry.is_directory()) fsync_directory(entry.path().string());
  fsync_directory(temporary_);
  std::string old;  // what the new folder replaces
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    if (!replace_ || (error != EEXIST && error != ENOTEMPTY))
      throw system_error("rename " + temporary_ + " to", path_, error);
    old = temporary_;
    // Both names change places in one step; the old content is then under the temporary name.
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
      if (errno != EINVAL && errno != ENOSYS) throw system_error("exchange " + temporary_ + " with", path_, errno);
      old = fmt::format("{}.old-{}", path_, ::getpid());
      if (::rename(path_.c_str(), old.c_str()) != 0) throw system_error("rename " + path_ + " to", old, errno);
      if (::rename(temporary_.c_str(), path_.c_str()) != 0)
        throw system_error("rename " + temporary_ + " to", path_, errno, "the previous content is in " + old);
    }
  }
  committed_ = true;
  fsync_directory(parent_directory(path_));
  std::error_code ec;
  if (!old.empty()) fs::remove_all(old, ec);
}

void write_file_atomic(const std::string& path, std::string_view text) {
  AtomicFile file(path, static_cast<int64_t>(text.size()));
  file.write(text);
  file.commit();
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw system_error("open", path, errno);
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close_at_end{fd};
  struct stat status;
  if (::fstat(fd, &status) != 0) throw system_error("read", path, errno);
  if (S_ISDIR(status.st_mode)) throw system_error("read", path, EISDIR);
  std::string text;
  if (S_ISREG(status.st_mode)) text.reserve(static_cast<size_t>(std::min<int64_t>(status.st_size, max_bytes)));
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read", path, errno);
    if (n == 0) return text;
    if (static_cast<int64_t>(text.size()) + n > max_bytes)
      throw Error(fmt::format("{} is larger than {}, too much for a file of this kind", path, format_bytes(max_bytes)));
    text.append(buffer, static_cast<size_t>(n));
  }
}

std::string parent_directory(const std::string& path) {
  const std::string parent = fs::path(strip_slashes(path)).parent_path().string();
  return parent.empty() ? "." : parent;
}

void fsync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw system_error("open folder", path, errno);
  const int result = ::fsync(fd), error = errno;
  ::close(fd);
  // Some network and overlay file systems cannot sync folders: nothing can be done about it.
  if (result != 0 && error != EINVAL && error != ENOTSUP && error != EROFS) throw system_error("sync folder", path, error);
}

int64_t free_space(const std::string& path) {
  std::string at = path;
  struct statvfs status;
  while (::statvfs(at.c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) throw system_error("ask for free space at", at, errno);
    const std::string up = parent_directory(at);
    if (up == at) throw system_error("ask for free space at", path, ENOENT);
    at = up;
  }
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

void require_free_space(const std::string& path, int64_t bytes, const std::string& what) {
  const int64_t available = free_space(path);
  if (available < bytes)
    throw Error(fmt::format("{}: {} needs {} ({} bytes), {} free", path, what, format_bytes(bytes), bytes, format_bytes(available)),
                "free space on that file system or write to another one");
}

}  // namespace megaslide
