#include "io/block_engine.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "base/disk_watch.h"
#include "base/error.h"
#include "base/library_versions.h"
#include "base/thread_pool.h"

namespace megaslide {
namespace {

const char* action_of(const BlockJob& job) { return job.request.write ? "write" : "read"; }

class UringEngine final : public BlockEngine {
 public:
  UringEngine(int fd, int depth) : fd_(fd), depth_(static_cast<size_t>(depth)) {}
  ~UringEngine() override {
    if (open_) io_uring_queue_exit(&ring_);
  }
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

  // 0, or a negative errno.
  int open() {
    if (const int error = io_uring_queue_init(static_cast<unsigned>(depth_), &ring_, 0); error != 0) return error;
    open_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool able = probe && io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe) io_uring_free_probe(probe);
    return able ? 0 : -EOPNOTSUPP;
  }

  bool register_memory(std::span<const std::span<std::byte>> areas) override {
    constexpr size_t kMost = size_t{1} << 30;  // the kernel's limit on one buffer
    std::vector<iovec> buffers;
    for (const auto& area : areas)
      for (size_t at = 0; at < area.size(); at += kMost) buffers.push_back({area.data() + at, std::min(kMost, area.size() - at)});
    if (buffers.empty() || io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(buffers.size())) != 0) return false;
    buffers_ = std::move(buffers);
    return true;
  }

  std::string name() const override { return "io_uring"; }

  void run(std::span<BlockJob> jobs, BlockJobs& owner) override {
    std::vector<BlockJob*> again;
    std::exception_ptr failure;
    size_t next = 0, under_way = 0;
    const auto attempt = [&](auto&& work) {
      try {
        work();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    };
    for (;;) {
      while (!failure && under_way < depth_ && (!again.empty() || next < jobs.size()))
        attempt([&] {
          if (again.empty()) {
            owner.begin(jobs[next]);
            again.push_back(&jobs[next++]);
          }
          submit(*again.back(), owner.path());
          again.pop_back();
          ++under_way;
        });
      if (under_way == 0) break;
      // Requests that are under way write into the caller's memory: whatever happens they are waited for.
      const auto [job, answer] = wait(owner.path(), action_of(jobs.front()));
      --under_way;
      attempt([&, j = job, a = answer] {
        if (!owner.advance(*j, a)) again.push_back(j);
      });
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // Index of the registered memory that holds all of a request, or -1.
  int buffer_of(const BlockRequest& r) const {
    const auto* begin = static_cast<const std::byte*>(r.memory);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const auto* base = static_cast<const std::byte*>(buffers_[i].iov_base);
      if (begin >= base && begin + r.bytes <= base + buffers_[i].iov_len) return static_cast<int>(i);
    }
    return -1;
  }

  void submit(BlockJob& job, const std::string& path) {
    if (broken_) throw system_error("queue requests for", path, broken_);
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    MS_CHECK(sqe, "no more requests are queued than the ring holds");
    const BlockRequest& r = job.request;
    const auto bytes = static_cast<unsigned>(r.bytes);
    const auto offset = static_cast<uint64_t>(r.offset);
    const int buffer = buffer_of(r);
    if (buffer >= 0 && r.write) io_uring_prep_write_fixed(sqe, fd_, r.memory, bytes, offset, buffer);
    else if (buffer >= 0) io_uring_prep_read_fixed(sqe, fd_, r.memory, bytes, offset, buffer);
    else if (r.write) io_uring_prep_write(sqe, fd_, r.memory, bytes, offset);
    else io_uring_prep_read(sqe, fd_, r.memory, bytes, offset);
    io_uring_sqe_set_data(sqe, &job);
    int submitted;
    do submitted = io_uring_submit(&ring_);
    while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    if (submitted >= 0) return;
    broken_ = -submitted;  // the entry stays in the ring, which must not be used again
    throw system_error("queue requests for", path, broken_);
  }

  std::pair<BlockJob*, int64_t> wait(const std::string& path, const char* action) {
    const DiskOperation operation(action, path);
    io_uring_cqe* cqe = nullptr;
    int error;
    do error = io_uring_wait_cqe(&ring_, &cqe);
    while (error == -EINTR || error == -EAGAIN);
    MS_CHECK(error == 0, "io_uring_wait_cqe: {}", std::strerror(-error));
    const std::pair<BlockJob*, int64_t> result{static_cast<BlockJob*>(io_uring_cqe_get_data(cqe)), cqe->res};
    io_uring_cqe_seen(&ring_, cqe);
    return result;
  }

  const int fd_;
  const size_t depth_;
  io_uring ring_ = {};
  bool open_ = false;
  int broken_ = 0;
  std::vector<iovec> buffers_;
};

class ThreadEngine final : public BlockEngine {
 public:
  ThreadEngine(int fd, int threads) : fd_(fd), pool_(threads) {}
  std::string name() const override { return fmt::format("{} threads", pool_.size()); }

  void run(std::span<BlockJob> jobs, BlockJobs& owner) override {
    pool_.parallel_for(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        BlockJob& job = jobs[static_cast<size_t>(i)];
        owner.begin(job);
        while (!owner.advance(job, transfer(job, owner.path()))) {
        }
      }
    });
  }

 private:
  int64_t transfer(const BlockJob& job, const std::string& path) const {
    const DiskOperation operation(action_of(job), path);
    const BlockRequest& r = job.request;
    const auto bytes = static_cast<size_t>(r.bytes);
    const ssize_t n = r.write ? pwrite(fd_, r.memory, bytes, r.offset) : pread(fd_, r.memory, bytes, r.offset);
    return n >= 0 ? n : -errno;
  }

  const int fd_;
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<BlockEngine> make_uring_engine(int fd, int depth, std::string& why) {
  auto engine = std::make_unique<UringEngine>(fd, depth);
  const int error = engine->open();
  if (error == 0) return engine;
  why = std::strerror(-error);
  return nullptr;
}

std::unique_ptr<BlockEngine> make_thread_engine(int fd, int threads) { return std::make_unique<ThreadEngine>(fd, threads); }

std::string version_of_liburing() { return MEGASLIDE_URING_VERSION; }

}  // namespace megaslide
