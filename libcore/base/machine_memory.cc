#include "base/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace megaslide {
namespace {

// A number alone in a file; -1 where there is none ("max", or no such file).
int64_t number_in(const char* path) {
  std::ifstream in(path);
  int64_t n = -1;
  in >> n;
  return in ? n : -1;
}

int64_t kernel_available() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  for (int64_t kib = 0; in >> key >> kib; in.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (key == "MemAvailable:") return kib * 1024;
  return 0;
}

}  // namespace

int64_t available_memory() {
  const int64_t kernel = kernel_available();
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (limit < 0 || used < 0) return kernel;
  const int64_t left = std::max<int64_t>(0, limit - used);
  return kernel == 0 ? left : std::min(kernel, left);
}

}  // namespace megaslide
