// Files and folders that appear whole or not at all: written beside their place, fsynced, renamed, and the parent
// folder fsynced. A process killed at any instant leaves what was there before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace megaslide {

// A file being written in order. Errors name the path, the reason and, on a full disk, the bytes that were still needed.
class FileWriter {
 public:
  FileWriter() = default;
  // Creates or truncates. `expected_bytes`: what will be written in all, for the message on a full disk; -1 unknown.
  explicit FileWriter(const std::string& path, int64_t expected_bytes = -1);
  ~FileWriter();
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&& other) noexcept;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  void sync();   // fsync; a large file is also synced on the way
  void close();  // reports what close() reports; further calls do nothing
  int64_t written() const { return written_; }
  const std::string& path() const { return path_; }

 private:
  int64_t write_some(std::span<const std::byte> bytes);
  std::string path_;
  int fd_ = -1;
  int64_t written_ = 0, synced_ = 0, expected_ = -1;
};

// A temporary name beside PATH that somebody else writes and fsyncs: PATH.tmp-<pid> until commit() renames it to PATH
// and fsyncs the folder. Destroyed without commit, the temporary is removed. Error when PATH is not a regular file.
class AtomicPath {
 public:
  explicit AtomicPath(const std::string& path);
  ~AtomicPath();
  AtomicPath(const AtomicPath&) = delete;
  AtomicPath& operator=(const AtomicPath&) = delete;

  void commit();
  const std::string& temporary() const { return temporary_; }

 private:
  std::string path_, temporary_;
  bool committed_ = false;
};

// A file that becomes visible under its name at commit().
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path, int64_t expected_bytes = -1)
      : target_(path), writer_(target_.temporary(), expected_bytes) {}

  void write(std::span<const std::byte> bytes) { writer_.write(bytes); }
  void write(std::string_view text) { writer_.write(text); }
  void commit();  // fsync, rename, fsync of the folder
  const std::string& temporary() const { return target_.temporary(); }

 private:
  AtomicPath target_;
  FileWriter writer_;
};

// DIR.tmp until commit(), then DIR. A DIR.tmp left by a killed process is removed first. Files inside are the caller's
// to fsync (FileWriter::sync, SafetensorsWriter::finish); commit() fsyncs the folders.
class AtomicDirectory {
 public:
  // `replace`: an existing DIR is exchanged for the new one and removed; otherwise its existence is an Error here,
  // unless it is an empty folder.
  explicit AtomicDirectory(const std::string& path, bool replace = false);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& temporary() const { return temporary_; }
  std::string file(std::string_view name) const { return temporary_ + "/" + std::string(name); }
  void commit();

 private:
  std::string path_, temporary_;
  bool replace_, committed_ = false;
};

void write_file_atomic(const std::string& path, std::string_view text);

// The whole file. Error when it is larger than `max_bytes`, a folder, or unreadable.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

void rename_path(const std::string& from, const std::string& to);
// Makes the folders of `path` that are missing; each is on the disk when this returns.
void make_directories(const std::string& path, const std::string& remedy = {});
// Removes a file, or a folder with all that is in it; it may be absent.
void remove_tree(const std::string& path);
// Removes the temporaries of AtomicPath that processes which were killed have left in a folder. The caller's lock keeps
// other writers away.
void remove_temporaries(const std::string& directory);
void fsync_directory(const std::string& path);
std::string parent_directory(const std::string& path);  // "." for a bare name

// Bytes an unprivileged process may still write on the file system that holds `path`, or the nearest existing parent.
int64_t free_space(const std::string& path);
// Error (failure, with both figures) when fewer than `bytes` are free there.
void require_free_space(const std::string& path, int64_t bytes, const std::string& what);
std::string format_bytes(int64_t bytes);  // "1.47 TB", "812 B": decimal units

}  // namespace megaslide
