#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {
namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

class AtomicFileTest : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return dir_ + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(dir_)) out.push_back(e.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
  const TemporaryFolder folder_;
  const std::string& dir_ = folder_.path();
};

// Runs `body` in a child whose files may not exceed `limit` bytes; returns what it threw.
std::string with_file_limit(rlim_t limit, const std::function<void()>& body) {
  int fds[2];
  if (pipe(fds) != 0) return "pipe";
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit r{limit, limit};
    setrlimit(RLIMIT_FSIZE, &r);
    std::string message = "no error";
    try {
      body();
    } catch (const Error& e) {
      message = e.what();
    }
    const ssize_t n = write(fds[1], message.data(), message.size());
    _exit(n < 0);
  }
  close(fds[1]);
  std::string out(4096, '\0');
  const ssize_t n = read(fds[0], out.data(), out.size());
  close(fds[0]);
  int status;
  waitpid(child, &status, 0);
  out.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return out;
}

TEST_F(AtomicFileTest, AppearsAtCommitOnly) {
  {
    AtomicFile f(at("a"));
    f.write("hello");
    EXPECT_FALSE(fs::exists(at("a")));
    EXPECT_TRUE(fs::exists(f.temporary()));
    f.commit();
  }
  EXPECT_EQ(read_file(at("a")), "hello");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(AtomicFileTest, WithoutCommitTheOldFileStays) {
  write_file_atomic(at("a"), "old");
  {
    AtomicFile f(at("a"));
    f.write("new");
  }
  EXPECT_EQ(read_file(at("a")), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(AtomicFileTest, ErrorsNamePathAndReason) {
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([&] { write_file_atomic(at("no/such/file"), "x"); }).find("No such file"), std::string::npos);
  EXPECT_NE(message([&] { write_file_atomic(dir_, "x"); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(message([&] { read_file(dir_); }).find("directory"), std::string::npos);
  EXPECT_NE(message([&] { read_file(at("none")); }).find(at("none")), std::string::npos);
  write_file_atomic(at("big"), std::string(1001, 'x'));
  EXPECT_NE(message([&] { read_file(at("big"), 1000); }).find("larger than"), std::string::npos);
  EXPECT_EQ(read_file(at("big"), 1001).size(), 1001u);
}

TEST_F(AtomicFileTest, AFileLimitLeavesTheOldFileWhole) {
  write_file_atomic(at("a"), "old");
  const std::string message = with_file_limit(1 << 16, [&] { write_file_atomic(at("a"), std::string(100'000, 'x')); });
  EXPECT_NE(message.find("write " + at("a")), std::string::npos) << message;
  EXPECT_NE(message.find("34.5 kB more needed"), std::string::npos) << message;
  EXPECT_NE(message.find("remedy"), std::string::npos) << message;
  EXPECT_EQ(read_file(at("a")), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(AtomicFileTest, AFullDiskLeavesTheOldFileWhole) {
  fs::create_directory(at("disk"));
  if (mount("none", at("disk").c_str(), "tmpfs", 0, "size=256k") != 0) GTEST_SKIP() << "no permission to mount a tmpfs";
  write_file_atomic(at("disk/a"), "old");
  std::string message;
  try {
    write_file_atomic(at("disk/a"), std::string(1'000'000, 'x'));
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
  EXPECT_NE(message.find("more needed"), std::string::npos) << message;
  EXPECT_EQ(read_file(at("disk/a")), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(at("disk")), fs::directory_iterator()), 1);
  EXPECT_THROW(require_free_space(at("disk/not/yet/there"), 1 << 20, "a checkpoint"), Error);
  EXPECT_NO_THROW(require_free_space(at("disk"), 1000, "a checkpoint"));
  umount(at("disk").c_str());
}

TEST_F(AtomicFileTest, DirectoryAppearsWhole) {
  {
    AtomicDirectory d(at("out/"));
    write_file_atomic(d.file("x"), "1");
    EXPECT_EQ(names(), std::vector<std::string>{"out.tmp"});
    d.commit();
  }
  EXPECT_EQ(read_file(at("out/x")), "1");
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
  EXPECT_THROW(AtomicDirectory(at("out")), Error);
  {
    AtomicDirectory d(at("out"), true);
    write_file_atomic(d.file("y"), "2");
    EXPECT_EQ(read_file(at("out/x")), "1");
    d.commit();
  }
  EXPECT_EQ(read_file(at("out/y")), "2");
  EXPECT_FALSE(fs::exists(at("out/x")));
  EXPECT_EQ(names(), std::vector<std::string>{"out"});
}

TEST_F(AtomicFileTest, DirectoryWithoutCommitAndLeftovers) {
  fs::create_directory(at("out.tmp"));
  write_file_atomic(at("out.tmp/stale"), "x");
  { AtomicDirectory d(at("out")); EXPECT_FALSE(fs::exists(d.file("stale"))); }
  EXPECT_TRUE(names().empty());
  fs::create_directory(at("empty"));
  AtomicDirectory d(at("empty"));
  d.commit();
  write_file_atomic(at("plain"), "x");
  EXPECT_THROW(AtomicDirectory(at("plain"), true), Error);
}

TEST_F(AtomicFileTest, FoldersAreMadeAndRemovedWithAllInside) {
  make_directories(at("a/b/c"));
  make_directories(at("a/b/c/"));
  EXPECT_TRUE(fs::is_directory(at("a/b/c")));
  write_file_atomic(at("a/file"), "x");
  EXPECT_THROW(make_directories(at("a/file/d")), Error);
  EXPECT_THROW(make_directories(at("a/file")), Error);
  write_file_atomic(at("other"), "x");
  fs::create_symlink(at("other"), at("a/b/link"));
  remove_tree(at("a"));
  remove_tree(at("a"));
  EXPECT_EQ(names(), std::vector<std::string>{"other"}) << "links are not followed";
}

TEST_F(AtomicFileTest, TemporariesOfOtherProcessesAreRemoved) {
  for (const char* name : {"x.tmp-17", "x.tmp-", "x.tmp-1a", "x.tmp", ".tmp-3", "tmp-4"}) write_file_atomic(at(name), "x");
  remove_temporaries(dir_);
  remove_temporaries(at("absent"));
  EXPECT_EQ(names(), (std::vector<std::string>{"tmp-4", "x.tmp", "x.tmp-", "x.tmp-1a"}));
}

TEST(SystemError, HasARemedyForABadDisk) {
  for (const int reason : {EIO, ENOSPC, EDQUOT, ESTALE}) EXPECT_NE(system_error("write", "file", reason).remedy(), "") << reason;
}

TEST(FormatBytes, Units) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(999'999), "1.00 MB");
  EXPECT_EQ(format_bytes(34'464), "34.5 kB");
  EXPECT_EQ(format_bytes(1'470'000'000'000), "1.47 TB");
}

TEST(ParentDirectory, Names) {
  EXPECT_EQ(parent_directory("a"), ".");
  EXPECT_EQ(parent_directory("a/b/"), "a");
  EXPECT_EQ(parent_directory("/a"), "/");
}

}  // namespace
}  // namespace megaslide
