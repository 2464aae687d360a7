#include "stream/host_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "stream/numa.h"

namespace megaslide {
namespace {

TEST(NodeLists, AsTheKernelWritesThem) {
  EXPECT_EQ(parse_node_list("0\n"), (std::vector<int>{0}));
  EXPECT_EQ(parse_node_list("0-3"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(parse_node_list("0-1,4,8-9\n"), (std::vector<int>{0, 1, 4, 8, 9}));
  for (const char* none : {"", "\n", "a", "1,", ",1", "1-", "3-1", "-1", "0 1", "1024", "0-99999999999"}) EXPECT_TRUE(parse_node_list(none).empty()) << none;
}

TEST(NodeLists, AsBits) {
  EXPECT_TRUE(node_mask({}).empty());
  EXPECT_EQ(node_mask({0, 2}), (std::vector<unsigned long>{5}));
  EXPECT_EQ(node_mask({1, 64}), (std::vector<unsigned long>{2, 1}));
}

TEST(NodeLists, OfThisMachine) {
  const std::vector<int> nodes = online_memory_nodes();
  for (size_t i = 1; i < nodes.size(); ++i) EXPECT_LT(nodes[i - 1], nodes[i]);
}

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * 4096;
}

// Large pages must not take more than was asked for: the ledger is compared with what is resident.
TEST(HostMemory, IsZeroTouchedAndNoMoreThanItsLedgerSays) {
  const int64_t before = resident_bytes();
  HostMemory memory(false);
  int64_t ledger = 0;
  std::vector<std::pair<std::byte*, int64_t>> slabs;
  // Just above and just below large pages, and one that several threads touch.
  for (const int64_t bytes : {int64_t{1}, int64_t{5000}, (int64_t{2} << 20) + 1, (int64_t{4} << 20) - 4096, (int64_t{40} << 20) + 12345})
    slabs.emplace_back(static_cast<std::byte*>(memory.allocate(bytes, ledger)), bytes);
  const int64_t taken = resident_bytes() - before;
  // Allocator, threads' stacks and the counters' own batches of pages come to it; sanitizers shadow it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_NEAR(static_cast<double>(taken), static_cast<double>(ledger), 1 << 20);
#else
  EXPECT_GE(taken, ledger);
#endif
  for (const auto& [p, bytes] : slabs)
    for (int64_t i = 0; i < bytes; i += 509) ASSERT_EQ(p[i], std::byte{0});
  EXPECT_EQ(memory.allocate(0, ledger), nullptr);
}

// On a machine with one node too: a policy of that node alone is a valid one.
TEST(HostMemory, InterleavedMemoryIsMemory) {
  HostMemory memory(false);
  int64_t ledger = 0;
  auto* p = static_cast<std::byte*>(memory.allocate(1 << 20, ledger));
  interleave(p, 1 << 20, {0});
  for (int64_t i = 0; i < 1 << 20; i += 4096) EXPECT_EQ(p[i], std::byte{0});
}

}  // namespace
}  // namespace megaslide
