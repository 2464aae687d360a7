// Who touched shared memory last, two bytes at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace megaslide::simt {

// A thread at an instant: two accesses of different threads are ordered when a barrier of the block lies between them,
// or, within a warp, a __syncwarp.
struct Moment {
  uint32_t thread = 0;
  uint32_t block_epoch = 0;  // barriers of the block so far, from 1
  uint32_t warp_epoch = 0;   // __syncwarps of its warp so far
};

struct Race {
  enum class Kind { kNone, kReadAfterWrite, kWriteAfterRead, kWriteAfterWrite, kCopyInFlight };
  Kind kind = Kind::kNone;
  size_t offset = 0;
  uint32_t other = 0;  // thread
};

class RaceDetector {
 public:
  void reset(size_t bytes);
  // The first conflict of this access, if any; the access is then taken as the last one.
  Race access(const Moment& now, size_t offset, size_t bytes, bool write);
  // An asynchronous copy writes its destination both when it is issued and when it is waited for.
  Race begin_copy(const Moment& now, size_t offset, size_t bytes);
  Race end_copy(const Moment& now, size_t offset, size_t bytes);

 private:
  static constexpr uint32_t kMany = 0xffffffffu;
  struct Cell {
    Moment writer;
    Moment reader;             // thread: kMany when several of one warp read since its last __syncwarp
    uint32_t reader_warp = 0;  // kMany when several warps read since the last barrier
    bool in_flight = false;
  };
  Race::Kind touch(Cell& cell, const Moment& now, bool write, uint32_t& other);
  std::vector<Cell> cells_;
};

}  // namespace megaslide::simt
