// The resident memory of this process, and its peak since a point in time.
#pragma once
#include <cstdint>

namespace megaslide {

class PeakMemory {
 public:
  PeakMemory();  // returns freed memory to the system and starts counting
  // Peak resident bytes above those at the start; −1 where the system does not tell.
  int64_t bytes() const;

 private:
  int64_t before_;
};

}  // namespace megaslide
