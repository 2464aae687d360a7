#include "device/cuda/staging_ring.h"

#include <algorithm>
#include <cstring>

namespace megaslide::cuda {

StagingRing::StagingRing(EventPool& events, cudaStream_t stream) : events_(events), stream_(stream) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, kPieces * kPieceBytes, cudaHostAllocDefault), "cudaHostAlloc", "the staging ring");
  memory_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < kPieces; ++i) pieces_[i].memory = memory_ + static_cast<int64_t>(i) * kPieceBytes;
}

StagingRing::~StagingRing() { cudaFreeHost(memory_); }

void StagingRing::upload(void* to, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    Piece& piece = pieces_[next_++ % kPieces];
    if (piece.done) piece.done->synchronize();
    const auto n = static_cast<size_t>(std::min(kPieceBytes, bytes - at));
    std::memcpy(piece.memory, static_cast<const std::byte*>(from) + at, n);
    check(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, piece.memory, n, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync", "an upload");
    piece.done = events_.record(stream_);
  }
}

void StagingRing::download(void* to, const void* from, int64_t bytes) {
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto size = [&](int64_t i) { return static_cast<size_t>(std::min(kPieceBytes, bytes - i * kPieceBytes)); };
  const size_t first = next_;
  const auto piece = [&](int64_t i) -> Piece& { return pieces_[(first + static_cast<size_t>(i)) % kPieces]; };
  // The next piece is on its way while this one is moved on.
  for (int64_t i = 0; i <= pieces; ++i) {
    if (i < pieces) {
      Piece& p = piece(i);
      if (p.done) p.done->synchronize();
      check(cudaMemcpyAsync(p.memory, static_cast<const std::byte*>(from) + i * kPieceBytes, size(i), cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync", "a download");
      p.done = events_.record(stream_);
    }
    if (i == 0) continue;
    Piece& p = piece(i - 1);
    p.done->synchronize();
    std::memcpy(static_cast<std::byte*>(to) + (i - 1) * kPieceBytes, p.memory, size(i - 1));
  }
  next_ = first + static_cast<size_t>(pieces);
}

}  // namespace megaslide::cuda
