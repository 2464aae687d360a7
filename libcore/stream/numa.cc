#include "stream/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <string>

namespace megaslide {
namespace {
constexpr int kLastNode = 1023;
constexpr size_t kBitsAWord = 8 * sizeof(unsigned long);
constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h, which is not everywhere installed

// A number at the front of `text`, which is taken off; −1: there is none.
int take_number(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || value > kLastNode) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

}  // namespace

std::vector<int> parse_node_list(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::vector<int> nodes;
  while (!text.empty()) {
    const int first = take_number(text);
    int last = first;
    if (!text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first || (!text.empty() && text.front() != ',')) return {};
    for (int n = first; n <= last; ++n) nodes.push_back(n);
    if (text.empty()) break;
    text.remove_prefix(1);
    if (text.empty()) return {};
  }
  return nodes;
}

std::vector<int> online_memory_nodes() {
  // has_memory leaves out nodes of processors or devices alone; kernels without it list what is online.
  for (const char* path : {"/sys/devices/system/node/has_memory", "/sys/devices/system/node/online"}) {
    std::ifstream in(path);
    std::string line;
    if (std::getline(in, line)) return parse_node_list(line);
  }
  return {};
}

std::vector<unsigned long> node_mask(const std::vector<int>& nodes) {
  std::vector<unsigned long> mask;
  for (const int n : nodes) {
    const auto at = static_cast<size_t>(n);
    if (at / kBitsAWord >= mask.size()) mask.resize(at / kBitsAWord + 1);
    mask[at / kBitsAWord] |= 1UL << at % kBitsAWord;
  }
  return mask;
}

void interleave(void* memory, int64_t bytes, const std::vector<int>& nodes) {
  const std::vector<unsigned long> mask = node_mask(nodes);
  // The kernel takes one bit less than it is told of.
  syscall(SYS_mbind, memory, static_cast<unsigned long>(bytes), kInterleave, mask.data(), mask.size() * kBitsAWord + 1, 0U);
}

}  // namespace megaslide
