#include "attention_check/peak_memory.h"

#include <cstdlib>
#include <fstream>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace megaslide {
namespace {

// A line "VmHWM:   1234 kB" of /proc/self/status, in bytes; −1 without one.
int64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key + ":", 0) == 0) return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  return -1;
}

}  // namespace

PeakMemory::PeakMemory() {
#ifdef __GLIBC__
  // Else the threshold grows with what is freed, and what a large run frees stays resident under the next one.
  mallopt(M_MMAP_THRESHOLD, 1 << 18);
  malloc_trim(0);
#endif
  std::ofstream out("/proc/self/clear_refs");
  out << "5";  // resets VmHWM to the present size
  out.flush();
  before_ = out ? status_bytes("VmRSS") : -1;
}

int64_t PeakMemory::bytes() const {
  const int64_t peak = status_bytes("VmHWM");
  return before_ < 0 || peak < 0 ? -1 : peak - before_;
}

}  // namespace megaslide
