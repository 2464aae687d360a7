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
#include <vector>

#include "base/disk_watch.h"
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

// Linux moves at most 2 GiB a call; smaller pieces show sooner that a slow disk is at work.
constexpr size_t kMostAtOnce = size_t{1} << 26;
// Written and not yet on the disk, at most. Otherwise memory takes whole files, and fsync waits for minutes in one call.
constexpr int64_t kMostUnsynced = int64_t{1} << 28;

bool is_temporary(const std::string& name) {
  const auto at = name.rfind(".tmp-");
  return at != std::string::npos && at + 5 < name.size() && name.find_first_not_of("0123456789", at + 5) == std::string::npos;
}

int open_new(const std::string& path, int extra) {
  const DiskOperation operation("open", path);
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
  std::swap(synced_, other.synced_);
  std::swap(expected_, other.expected_);
  return *this;
}

void FileWriter::write(std::span<const std::byte> bytes) {
  MS_CHECK(fd_ >= 0, "{} is not open", path_);
  while (!bytes.empty()) {
    const int64_t n = write_some(bytes.first(std::min(bytes.size(), kMostAtOnce)));
    written_ += n;
    bytes = bytes.subspan(static_cast<size_t>(n));
    if (written_ - synced_ >= kMostUnsynced) sync();
  }
}

int64_t FileWriter::write_some(std::span<const std::byte> bytes) {
  const DiskOperation operation("write", path_);
  for (;;) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n > 0) return n;
    // A file takes no byte and gives no reason: another try would be one of endlessly many.
    if (n == 0) throw write_error(path_, EIO, written_, expected_);
    if (errno != EINTR) throw write_error(path_, errno, written_, expected_);
  }
}

void FileWriter::sync() {
  MS_CHECK(fd_ >= 0, "{} is not open", path_);
  const DiskOperation operation("sync", path_);
  if (::fsync(fd_) != 0) throw write_error(path_, errno, written_, expected_);
  synced_ = written_;
}

void FileWriter::close() {
  if (fd_ < 0) return;
  const DiskOperation operation("close", path_);
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
  rename_path(temporary_, path_);
  committed_ = true;
  fsync_directory(parent_directory(path_));
}

void AtomicFile::commit() {
  writer_.sync();
  writer_.close();
  target_.commit();
}

namespace {
// Where a failure to tidy up must not become the failure that is reported.
void remove_or_warn(const std::string& path) {
  try {
    remove_tree(path);
  } catch (const Error& e) {
    log_warning("{}", e.what());
  }
}
}  // namespace

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
    remove_tree(temporary_);
  }
  try {
    make_directories(parent_directory(temporary_), "choose a place that you may write to");
  } catch (const Error& e) {
    throw Error(path_ + ": " + e.message(), e.remedy());
  }
  const DiskOperation operation("create folder", temporary_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) throw system_error("create folder", temporary_, errno, "choose a place that you may write to");
}

AtomicDirectory::~AtomicDirectory() {
  if (!committed_) remove_or_warn(temporary_);
}

void AtomicDirectory::commit() {
  std::error_code ec;
  for (auto e = fs::recursive_directory_iterator(temporary_, ec); !ec && e != fs::recursive_directory_iterator(); e.increment(ec)) {
    std::error_code ignored;
    if (e->is_directory(ignored)) fsync_directory(e->path().string());
  }
  if (ec) throw system_error("list", temporary_, ec.value());
  fsync_directory(temporary_);
  const DiskOperation operation("rename to", path_);
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
      rename_path(path_, old);
      if (::rename(temporary_.c_str(), path_.c_str()) != 0)
        throw system_error("rename " + temporary_ + " to", path_, errno, "the previous content is in " + old);
    }
  }
  committed_ = true;
  fsync_directory(parent_directory(path_));
  if (!old.empty()) remove_or_warn(old);
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
    const DiskOperation operation("read", path);
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

void rename_path(const std::string& from, const std::string& to) {
  const DiskOperation operation("rename to", to);
  if (::rename(from.c_str(), to.c_str()) != 0) throw system_error("rename " + from + " to", to, errno);
}

namespace {

// `wanted`: what the caller asked for, of which `path` is a part.
void make_parts(const std::string& path, const std::string& wanted, const std::string& remedy) {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return;
    throw system_error("create folder", wanted, ENOTDIR, remedy);
  }
  const std::string parent = parent_directory(path);
  if (parent != path) make_parts(parent, wanted, remedy);
  const DiskOperation operation("create folder", path);
  if (::mkdir(strip_slashes(path).c_str(), 0777) == 0) return fsync_directory(parent);
  const int error = errno;
  // Another process may have made it meanwhile.
  if (error != EEXIST || ::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) throw system_error("create folder", wanted, error, remedy);
}

}  // namespace

void make_directories(const std::string& path, const std::string& remedy) { make_parts(path, path, remedy); }

void remove_tree(const std::string& path) {
  std::error_code ec;
  std::vector<std::string> inside;
  if (fs::symlink_status(path, ec).type() == fs::file_type::directory)
    for (auto e = fs::directory_iterator(path, ec); !ec && e != fs::directory_iterator(); e.increment(ec)) inside.push_back(e->path().string());
  for (const std::string& entry : inside) remove_tree(entry);
  const DiskOperation operation("remove", path);
  if (!ec) fs::remove(path, ec);
  if (ec && ec != std::errc::no_such_file_or_directory) throw system_error("remove", path, ec.value());
}

void remove_temporaries(const std::string& directory) {
  std::error_code ec;
  std::vector<std::string> found;
  for (auto e = fs::directory_iterator(directory, ec); !ec && e != fs::directory_iterator(); e.increment(ec))
    if (is_temporary(e->path().filename().string())) found.push_back(e->path().string());
  if (ec && ec != std::errc::no_such_file_or_directory) throw system_error("list", directory, ec.value());
  for (const std::string& path : found) {
    log_info("removing {}, left by a run that was stopped", path);
    remove_tree(path);
  }
}

void fsync_directory(const std::string& path) {
  const DiskOperation operation("sync", path);
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
