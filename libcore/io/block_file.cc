#include "io/block_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/disk_watch.h"
#include "base/error.h"
#include "base/log.h"
#include "io/block_engine.h"

namespace megaslide {
namespace {

constexpr int kThreads = 4;        // where requests block: enough for a queue at the disk
constexpr int kMostTries = 1000;   // of a request that moves nothing, in a row

int64_t aligned(int64_t bytes) { return (bytes + kBlockAlign - 1) / kBlockAlign * kBlockAlign; }

const char* kPlaceRemedy = "choose another stream.tier_path";

// Each file of this process has a name of its own.
std::string temporary_name(const std::string& directory) {
  static std::atomic<int> count{0};
  return fmt::format("{}/.tier-{}.tmp-{}", directory, ++count, getpid());
}

}  // namespace

struct BlockFile::Impl final : BlockJobs {
  struct Place {
    std::string name;
    int64_t offset = 0, bytes = 0;  // bytes: aligned
    size_t first_sum = 0;
    bool written = false;
  };
  std::vector<Place> places;
  std::vector<uint64_t> sums;  // a block; the same block is never in two jobs at once
  BlockFileOptions options;
  std::string name;
  int fd = -1;
  bool direct = false, registered = false;
  int64_t size = 0;
  size_t blocks = 0;
  std::mutex mutex;
  std::unique_ptr<BlockEngine> engine;

  ~Impl() override {
    engine.reset();
    if (fd >= 0) ::close(fd);
  }

  const std::string& path() const override { return name; }

  void lay_out(std::vector<BlockExtent>&& extents) {
    for (auto& e : extents) {
      places.push_back({std::move(e.name), size, aligned(e.bytes), blocks, false});
      size += places.back().bytes;
      blocks += static_cast<size_t>((places.back().bytes + kBlockBytes - 1) / kBlockBytes);
    }
  }

  int open_with(int flags) {
    const DiskOperation operation("open", name);
    return ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
  }

  void create(const std::string& directory) {
    make_directories(directory, kPlaceRemedy);
    require_free_space(directory, size, "the state that lies on disk (stream.tier: nvme)");
    name = temporary_name(directory);
    if (options.direct) fd = open_with(O_DIRECT);
    direct = fd >= 0;
    if (fd < 0 && (!options.direct || errno == EINVAL)) {
      // Some file systems leave the file behind that they could not open so.
      unlink(name.c_str());
      fd = open_with(0);
      if (options.direct) log_warning("{}: this file system has no O_DIRECT: the state goes through the page cache, which other memory pays for", directory);
    }
    if (fd < 0) throw system_error("open", name, errno, kPlaceRemedy);
    unlink(name.c_str());
    reserve();
    sums.assign(blocks, 0);
  }

  // All space at once: a run does not find out later that the disk is full.
  void reserve() {
    if (size == 0) return;
    const DiskOperation operation("reserve", name);
    int error;
    do error = fallocate(fd, 0, 0, size) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error == EOPNOTSUPP) error = ftruncate(fd, size) == 0 ? 0 : errno;
    if (error) throw system_error(fmt::format("reserve {} ({} bytes) for", format_bytes(size), size), name, error, kPlaceRemedy);
  }

  void choose_engine() {
    std::string why;
    if (options.uring) engine = make_uring_engine(fd, options.depth, why);
    if (engine) return;
    if (options.uring) log_warning("{}: io_uring is not to be had here ({}): {} threads read and write instead", name, why, kThreads);
    engine = make_thread_engine(fd, kThreads);
  }

  std::string block_name(const BlockJob& job) const {
    const Place& p = places[static_cast<size_t>(job.extent)];
    return fmt::format("{}, {} bytes at offset {}", p.name, job.request.bytes, job.request.offset);
  }
  [[noreturn]] void fail(const BlockJob& job, int error) const {
    throw system_error(fmt::format("{} {} of", job.request.write ? "write" : "read", block_name(job)), name, error);
  }

  // The whole block that a job, done or not, stands for.
  std::span<const std::byte> block_of(const BlockJob& job) const {
    const Place& p = places[static_cast<size_t>(job.extent)];
    const int64_t at = static_cast<int64_t>(job.index - p.first_sum) * kBlockBytes, n = std::min(kBlockBytes, p.bytes - at);
    const int64_t done = job.request.offset - (p.offset + at);
    return {static_cast<const std::byte*>(job.request.memory) - done, static_cast<size_t>(n)};
  }

  void begin(BlockJob& job) override {
    if (job.request.write) sums[job.index] = checksum64(block_of(job));
  }

  bool advance(BlockJob& job, int64_t answer) override {
    BlockRequest& r = job.request;
    if (options.answer) answer = options.answer(r, answer);
    if (answer < 0 && answer != -EINTR && answer != -EAGAIN) fail(job, static_cast<int>(-answer));
    if (answer == 0 && !r.write)
      throw Error(fmt::format("read {} of {}: the file ends before", block_name(job), name), "something has cut the file short: start the run again, from its last checkpoint");
    // What follows has to start at a sector again.
    const int64_t moved = answer < 0 ? 0 : answer >= r.bytes ? r.bytes : answer / kBlockAlign * kBlockAlign;
    job.tries = moved > 0 ? 0 : job.tries + 1;
    if (job.tries > kMostTries) fail(job, answer < 0 ? static_cast<int>(-answer) : EIO);
    if (answer == -EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    r.offset += moved;
    r.bytes -= moved;
    r.memory = static_cast<std::byte*>(r.memory) + moved;
    if (r.bytes > 0) return false;
    if (!r.write) verify(job);
    return true;
  }

  void verify(const BlockJob& job) const {
    const auto block = block_of(job);
    if (checksum64(block) == sums[job.index]) return;
    const Place& p = places[static_cast<size_t>(job.extent)];
    throw Error(fmt::format("read {} of {}: the {} bytes at offset {} are not those that were written (their checksum differs)", p.name, name, block.size(),
                            job.request.offset - static_cast<int64_t>(block.size())),
                "the disk, or what lies between, changes data: look into the system's log (dmesg), and give stream.tier_path on another disk");
  }

  void run(std::span<const Transfer> transfers, bool write) {
    const std::lock_guard lock(mutex);
    std::vector<BlockJob> jobs;
    for (const Transfer& t : transfers) {
      Place& p = places[static_cast<size_t>(t.extent)];
      MS_CHECK(reinterpret_cast<uintptr_t>(t.memory) % kBlockAlign == 0);
      if (!write && !p.written) {
        std::memset(t.memory, 0, static_cast<size_t>(p.bytes));
        continue;
      }
      for (int64_t at = 0; at < p.bytes; at += kBlockBytes)
        jobs.push_back({{write, p.offset + at, std::min(kBlockBytes, p.bytes - at), static_cast<std::byte*>(t.memory) + at}, t.extent,
                        p.first_sum + static_cast<size_t>(at / kBlockBytes)});
    }
    if (jobs.empty()) return;
    engine->run(jobs, *this);
    for (const Transfer& t : transfers)
      if (write) places[static_cast<size_t>(t.extent)].written = true;
  }
};

BlockFile::BlockFile(const std::string& directory, std::vector<BlockExtent> extents, BlockFileOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->lay_out(std::move(extents));
  impl_->create(directory);
  impl_->choose_engine();
}
BlockFile::~BlockFile() = default;

int64_t BlockFile::file_bytes(std::span<const BlockExtent> extents) {
  int64_t bytes = 0;
  for (const auto& e : extents) bytes += aligned(e.bytes);
  return bytes;
}

void BlockFile::register_memory(std::span<const std::span<std::byte>> areas) { impl_->registered = impl_->engine->register_memory(areas); }
void BlockFile::read(std::span<const Transfer> transfers) { impl_->run(transfers, false); }
void BlockFile::write(std::span<const Transfer> transfers) { impl_->run(transfers, true); }
int64_t BlockFile::bytes() const { return impl_->size; }
const std::string& BlockFile::path() const { return impl_->name; }

std::string BlockFile::method() const {
  return fmt::format("{}, {}{}", impl_->engine->name(), impl_->direct ? "O_DIRECT" : "page cache", impl_->registered ? ", registered memory" : "");
}

}  // namespace megaslide
