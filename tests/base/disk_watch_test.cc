#include "base/disk_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

namespace megaslide {
namespace {

using namespace std::chrono_literals;

class DiskWatchTest : public testing::Test {
 protected:
  DiskWatchTest() {
    before_ = set_hang_handler([this](const Error& e) { said_.set_value(e.what()); });
  }
  ~DiskWatchTest() override { set_hang_handler(before_); }

  HangHandler before_;
  std::promise<std::string> said_;  // a second call would throw
};

TEST_F(DiskWatchTest, NamesWhatHangs) {
  std::future<std::string> said = said_.get_future();
  const DiskWatch watch(0.1, "mend it");
  const DiskOperation first("write", "a/file"), second("sync", "a/folder");
  ASSERT_EQ(said.wait_for(20s), std::future_status::ready);
  EXPECT_EQ(said.get(), "the disk has not answered for 0.1 s:\n  write a/file\n  sync a/folder\n  remedy: mend it");
  std::this_thread::sleep_for(300ms);  // and is called once
}

TEST_F(DiskWatchTest, OperationsThatEndAreProgressAndNoneIsRest) {
  std::future<std::string> said = said_.get_future();
  const DiskWatch watch(1, ""), never(0, "");
  const DiskOperation slow("write", "slow");
  for (int i = 0; i < 30; ++i) {
    const DiskOperation quick("write", "quick");
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_EQ(said.wait_for(0s), std::future_status::timeout);
}

TEST_F(DiskWatchTest, WorkBetweenOperationsIsNoHang) {
  std::future<std::string> said = said_.get_future();
  const DiskWatch watch(0.1, "");
  { const DiskOperation quick("write", "quick"); }
  EXPECT_EQ(said.wait_for(500ms), std::future_status::timeout);
}

}  // namespace
}  // namespace megaslide
