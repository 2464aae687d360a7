// Copies between the device and host memory that is not locked: through a ring of locked pieces, so that they are
// asynchronous to all other streams. On the thread of the stream itself.
#pragma once
#include <array>
#include <cstddef>
#include <memory>

#include "device/cuda/events.h"

namespace megaslide::cuda {

class StagingRing {
 public:
  static constexpr size_t kPieces = 4;
  static constexpr int64_t kPieceBytes = int64_t{4} << 20;

  StagingRing(EventPool& events, cudaStream_t stream);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Returns when `from` has been read.
  void upload(void* to, const void* from, int64_t bytes);
  // Returns when `to` is there.
  void download(void* to, const void* from, int64_t bytes);

 private:
  struct Piece {
    std::byte* memory = nullptr;
    std::shared_ptr<CudaEvent> done;  // what was last done with it
  };
  EventPool& events_;
  cudaStream_t stream_;
  std::byte* memory_ = nullptr;
  std::array<Piece, kPieces> pieces_;
  size_t next_ = 0;
};

}  // namespace megaslide::cuda
