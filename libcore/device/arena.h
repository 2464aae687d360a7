// Address arithmetic of a device's memory: first fit, 256-byte alignment. The same code decides addresses on every
// device, so that a plan and a run agree to the byte.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "device/device.h"

namespace megaslide {

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;

  // Offsets count from 0. `budget` 0: unlimited.
  explicit Arena(int64_t budget);
  int64_t allocate(int64_t bytes, std::string_view name, MemoryCategory category);  // throws Error beyond the budget
  void release(int64_t offset);
  const MemoryReport& report() const;
  int64_t extent() const { return extent_; }  // highest end ever handed out

 private:
  [[noreturn]] void out_of_memory(int64_t bytes, std::string_view name) const;
  void note_peak() const;
  std::map<int64_t, DeviceAllocation> used_;  // by offset
  // What the peak consists of is written down when it passes or is asked for, not at each of the allocations on the way.
  mutable MemoryReport report_;
  mutable bool peak_unnoted_ = false;
  int64_t extent_ = 0;
};

}  // namespace megaslide
