// The file of state that lies on disk: what comes back is what was written, or an error that says where it is not.
#include "io/block_file.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::error_of;
using testing_support::TemporaryFolder;
namespace fs = std::filesystem;

// Memory for a transfer of `bytes`.
class Area {
 public:
  explicit Area(int64_t bytes, int seed = -1) : bytes_(bytes), data_(static_cast<size_t>((bytes + kBlockAlign - 1) / kBlockAlign * kBlockAlign + kBlockAlign)) {
    for (int64_t i = 0; seed >= 0 && i < bytes; ++i) (*this)[i] = static_cast<std::byte>(static_cast<uint64_t>(i * 31 + seed) * 0x9E3779B97F4A7C15u >> 56);
  }
  Area(Area&&) = default;  // a copy would lie elsewhere between multiples of kBlockAlign
  std::byte* memory() const {
    return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(data_.data()) + kBlockAlign - 1) / kBlockAlign * kBlockAlign);
  }
  std::byte& operator[](int64_t i) { return memory()[i]; }
  std::span<std::byte> span() const { return {memory(), static_cast<size_t>((bytes_ + kBlockAlign - 1) / kBlockAlign * kBlockAlign)}; }
  bool operator==(const Area& other) const { return bytes_ == other.bytes_ && std::memcmp(memory(), other.memory(), static_cast<size_t>(bytes_)) == 0; }

 private:
  int64_t bytes_;
  mutable std::vector<std::byte> data_;
};

const std::vector<BlockExtent> kExtents{{"blocks.0. weights", 1}, {"blocks.0. masters", 4096}, {"blocks.0. first moments", kBlockBytes},
                                        {"blocks.1. weights", 5 * kBlockBytes / 2 + 17}, {"blocks.1. masters", 6 * kBlockBytes + 8}};

void write(BlockFile& f, int extent, const Area& a) {
  const BlockFile::Transfer t{extent, a.memory()};
  f.write({&t, 1});
}
Area read(BlockFile& f, int extent) {
  Area a(kExtents[static_cast<size_t>(extent)].bytes, 99);
  const BlockFile::Transfer t{extent, a.memory()};
  f.read({&t, 1});
  return a;
}
Area filled(int extent, int seed) { return Area(kExtents[static_cast<size_t>(extent)].bytes, seed); }

std::string log_of(auto&& work) {
  std::string log;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { log += text + "\n"; });
  work();
  set_log_sink(before);
  return log;
}

// The file has no name; its descriptor of this process leads to it.
int open_behind_its_back(const BlockFile& f) {
  for (const auto& e : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ec;
    if (fs::read_symlink(e.path(), ec).string() == f.path() + " (deleted)") return open(e.path().c_str(), O_RDWR | O_CLOEXEC);
  }
  return -1;
}

TEST(BlockFile, ReturnsWhatWasWrittenLastByEveryWay) {
  for (const bool uring : {true, false})
    for (const bool direct : {true, false})
      for (const int depth : {1, 16}) {
        const TemporaryFolder folder;
        BlockFile f(folder.path(), kExtents, {.depth = depth, .uring = uring, .direct = direct});
        EXPECT_EQ(f.bytes(), BlockFile::file_bytes(kExtents));
        EXPECT_TRUE(fs::is_empty(folder.path())) << "a kill leaves nothing";
        // Not every file system that holds a temporary folder has O_DIRECT.
        if (!direct) {
          EXPECT_NE(f.method().find("page cache"), std::string::npos) << f.method();
        }
        for (int e = 0; e < 5; ++e) EXPECT_TRUE(read(f, e) == Area(kExtents[static_cast<size_t>(e)].bytes)) << "zeros before the first write";
        std::vector<Area> areas;
        std::vector<BlockFile::Transfer> all;
        std::vector<std::span<std::byte>> spans;
        for (int e = 0; e < 5; ++e) areas.push_back(filled(e, 0));
        for (int e = 0; e < 5; ++e) all.push_back({e, areas[static_cast<size_t>(e)].memory()}), spans.push_back(areas[static_cast<size_t>(e)].span());
        f.register_memory(spans);
        for (int round = 0; round < 2; ++round) {
          for (int e = 0; e < 5; ++e) std::memcpy(spans[static_cast<size_t>(e)].data(), filled(e, 5 * round + e).memory(), static_cast<size_t>(kExtents[static_cast<size_t>(e)].bytes));
          f.write(all);
          for (int e = 4; e >= 0; --e) EXPECT_TRUE(read(f, e) == areas[static_cast<size_t>(e)]) << e;
          for (const auto& s : spans) std::memset(s.data(), 0, s.size());
          f.read(all);
          for (int e = 0; e < 5; ++e) EXPECT_TRUE(areas[static_cast<size_t>(e)] == filled(e, 5 * round + e)) << e;
        }
      }
}

TEST(BlockFile, AChangedByteIsNamedByItsPlace) {
  for (const bool uring : {true, false}) {
    const TemporaryFolder folder;
    BlockFile f(folder.path(), kExtents, {.uring = uring});
    for (int e = 0; e < 5; ++e) write(f, e, filled(e, e));
    const int fd = open_behind_its_back(f);
    ASSERT_GE(fd, 0);
    // Extents before: 4096, 4096, 1 MiB. The byte lies in the second block of the fourth.
    const int64_t block = 2 * 4096 + 2 * kBlockBytes, at = block + 77;
    char byte;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 8);
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
    ASSERT_EQ(fsync(fd), 0);
    close(fd);
    const std::string error = error_of([&] { read(f, 3); });
    EXPECT_NE(error.find(fmt::format("read blocks.1. weights of {}: the {} bytes at offset {} are not those that were written", f.path(), kBlockBytes, block)),
              std::string::npos) << error;
    EXPECT_NE(error.find("remedy: "), std::string::npos) << error;
    EXPECT_TRUE(read(f, 4) == filled(4, 4)) << "the others are whole";
    write(f, 3, filled(3, 7));
    EXPECT_TRUE(read(f, 3) == filled(3, 7)) << "written again, it is";
  }
}

// A disk that lost a write returns what was there before, which is well formed.
TEST(BlockFile, AWriteThatNeverHappenedIsNoticed) {
  const TemporaryFolder folder;
  bool lose = false;
  std::vector<std::byte> before(4096);
  BlockFile f(folder.path(), kExtents);
  write(f, 1, filled(1, 1));
  const int fd = open_behind_its_back(f);
  ASSERT_EQ(pread(fd, before.data(), 4096, 4096), 4096);
  write(f, 1, filled(1, 2));
  ASSERT_EQ(pwrite(fd, before.data(), 4096, 4096), 4096);
  ASSERT_EQ(fsync(fd), 0);
  close(fd);
  lose = error_of([&] { read(f, 1); }).find("read blocks.0. masters") != std::string::npos;
  EXPECT_TRUE(lose);
}

TEST(BlockFile, AFileThatWasCutShortIsNamed) {
  for (const bool uring : {true, false}) {
    const TemporaryFolder folder;
    BlockFile f(folder.path(), kExtents, {.uring = uring});
    for (int e = 0; e < 5; ++e) write(f, e, filled(e, e));
    const int fd = open_behind_its_back(f);
    ASSERT_EQ(ftruncate(fd, f.bytes() - 4096), 0);
    close(fd);
    const std::string error = error_of([&] { read(f, 4); });
    EXPECT_NE(error.find(fmt::format("read blocks.1. masters, 4096 bytes at offset {} of {}: the file ends before", f.bytes() - 4096, f.path())), std::string::npos) << error;
  }
}

TEST(BlockFile, ShortAndInterruptedTransfersGoOn) {
  for (const bool uring : {true, false}) {
    const TemporaryFolder folder;
    std::atomic<int> count{0};
    const auto disturbed = [&](const BlockRequest& r, int64_t answer) -> int64_t {
      switch (count++ % 5) {
        case 0: return -EINTR;
        case 1: return -EAGAIN;
        case 2: return std::min<int64_t>(answer, r.bytes / 2 + 100);  // no multiple of a sector
        case 3: return std::min<int64_t>(answer, 4096);
        default: return answer;
      }
    };
    BlockFile f(folder.path(), kExtents, {.uring = uring, .answer = disturbed});
    for (int e = 0; e < 5; ++e) write(f, e, filled(e, e));
    for (int e = 0; e < 5; ++e) EXPECT_TRUE(read(f, e) == filled(e, e)) << e;
    EXPECT_GT(count, 60) << "of 12 blocks, written and read";
  }
}

TEST(BlockFile, AFailureNamesPlaceBytesAndRemedy) {
  for (const bool uring : {true, false}) {
    const TemporaryFolder folder;
    std::atomic<int> fail{0};
    BlockFile f(folder.path(), kExtents, {.uring = uring, .answer = [&](const BlockRequest& r, int64_t answer) {
                                            return fail && r.offset >= 4 * kBlockBytes && r.bytes == kBlockBytes ? -fail : answer;
                                          }});
    for (int e = 0; e < 5; ++e) write(f, e, filled(e, e));
    fail = EIO;
    const std::string reading = error_of([&] { read(f, 4); });
    EXPECT_NE(reading.find("read blocks.1. masters, 1048576 bytes at offset "), std::string::npos) << reading;
    EXPECT_NE(reading.find(f.path() + ": Input/output error"), std::string::npos) << reading;
    EXPECT_NE(reading.find("remedy: the disk or the connection to it fails"), std::string::npos) << reading;
    fail = ENOSPC;
    const std::string writing = error_of([&] { write(f, 4, filled(4, 8)); });
    EXPECT_NE(writing.find("write blocks.1. masters, 1048576 bytes at offset "), std::string::npos) << writing;
    EXPECT_NE(writing.find("remedy: free space"), std::string::npos) << writing;
    fail = 0;
    EXPECT_TRUE(read(f, 3) == filled(3, 3)) << "the others are whole";
    write(f, 4, filled(4, 9));
    EXPECT_TRUE(read(f, 4) == filled(4, 9));
  }
}

TEST(BlockFile, ATransferThatNeverGetsOnFails) {
  for (const bool uring : {true, false}) {
    const TemporaryFolder folder;
    BlockFile f(folder.path(), kExtents, {.uring = uring, .answer = [](const BlockRequest&, int64_t) { return 100; }});
    const std::string error = error_of([&] { write(f, 1, filled(1, 1)); });
    EXPECT_NE(error.find("write blocks.0. masters, 4096 bytes at offset 4096 of " + f.path() + ": Input/output error"), std::string::npos) << error;
  }
}

TEST(BlockFile, TooLittleSpaceIsSaidBeforeTheFirstByte) {
  const TemporaryFolder folder;
  const std::string error = error_of([&] { BlockFile f(folder.path(), {{"all", int64_t{1} << 60}}); });
  EXPECT_NE(error.find(folder.path()), std::string::npos) << error;
  EXPECT_NE(error.find("(1152921504606846976 bytes), "), std::string::npos) << error;
  EXPECT_NE(error.find("remedy: free space"), std::string::npos) << error;
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_NE(error_of([&] { BlockFile f("/proc/no/folder", kExtents); }).find("/proc/no"), std::string::npos);
}

TEST(BlockFile, ThreadsTakeTurns) {
  const TemporaryFolder folder;
  BlockFile f(folder.path(), kExtents);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int e = 0; e < 5; ++e)
    threads.emplace_back([&, e] {
      for (int round = 0; round < 3; ++round) {
        write(f, e, filled(e, round));
        if (!(read(f, e) == filled(e, round))) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// On a thread of its own, on which the system call `number` fails with `error`; where `flag` is not 0 only if argument 2 has it.
// False where such a filter cannot be had.
bool with_forbidden(long number, int error, uint32_t flag, const std::function<void()>& work) {
  bool able = true;
  std::thread([&] {
    const auto call = static_cast<uint32_t>(number);
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(uint64_t)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flag ? flag : 0xFFFFFFFFu, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    // Without a flag the call is forbidden whatever its arguments.
    if (!flag) code[3] = BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0);
    sock_fprog program{sizeof code / sizeof *code, code};
    able = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    if (able) work();
  }).join();
  return able;
}

TEST(BlockFile, WithoutIoUringThreadsDoIt) {
  for (const int error : {EPERM, ENOSYS}) {
    const bool able = with_forbidden(SYS_io_uring_setup, error, 0, [&] {
      const TemporaryFolder folder;
      const std::string log = log_of([&] {
        BlockFile f(folder.path(), kExtents);
        EXPECT_EQ(f.method().substr(0, 9), "4 threads");
        for (int e = 0; e < 5; ++e) write(f, e, filled(e, e));
        for (int e = 0; e < 5; ++e) EXPECT_TRUE(read(f, e) == filled(e, e)) << e;
      });
      EXPECT_NE(log.find(fmt::format("io_uring is not to be had here ({}): 4 threads read and write instead", std::strerror(error))), std::string::npos) << log;
    });
    if (!able) GTEST_SKIP() << "this system allows no seccomp filter";
  }
}

TEST(BlockFile, WithoutDirectAccessThePageCacheServes) {
  const bool able = with_forbidden(SYS_openat, EINVAL, O_DIRECT, [&] {
    const TemporaryFolder folder;
    const std::string log = log_of([&] {
      BlockFile f(folder.path(), kExtents);
      EXPECT_NE(f.method().find("page cache"), std::string::npos) << f.method();
      write(f, 4, filled(4, 1));
      EXPECT_TRUE(read(f, 4) == filled(4, 1));
    });
    EXPECT_NE(log.find("this file system has no O_DIRECT"), std::string::npos) << log;
  });
  if (!able) GTEST_SKIP() << "this system allows no seccomp filter";
}

}  // namespace
}  // namespace megaslide
