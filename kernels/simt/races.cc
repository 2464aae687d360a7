#include "kernels/simt/races.h"

namespace megaslide::simt {
namespace {

constexpr uint32_t kWarp = 32;

// Nothing lies between the access of `past`, in the same barrier epoch, and this one.
inline bool unordered(const Moment& past, const Moment& now) {
  if (past.block_epoch != now.block_epoch || past.thread == now.thread) return false;
  return past.thread / kWarp != now.thread / kWarp || past.warp_epoch == now.warp_epoch;
}

}  // namespace

void RaceDetector::reset(size_t bytes) { cells_.assign((bytes + 1) / 2, Cell{}); }

inline Race::Kind RaceDetector::touch(Cell& cell, const Moment& now, bool write, uint32_t& other) {
  Race::Kind kind = Race::Kind::kNone;
  const uint32_t warp = now.thread / kWarp;
  if (cell.in_flight) {
    other = cell.writer.thread;
    return Race::Kind::kCopyInFlight;
  }
  if (unordered(cell.writer, now)) {
    kind = write ? Race::Kind::kWriteAfterWrite : Race::Kind::kReadAfterWrite;
    other = cell.writer.thread;
  }
  const bool read_in_epoch = cell.reader.block_epoch == now.block_epoch;
  if (!write) {
    if (!read_in_epoch) {
      cell.reader = now, cell.reader_warp = warp;
    } else if (cell.reader_warp != warp) {
      cell.reader_warp = kMany;
    } else if (cell.reader.warp_epoch != now.warp_epoch) {
      cell.reader = now;
    } else if (cell.reader.thread != now.thread) {
      cell.reader.thread = kMany;
    }
    return kind;
  }
  if (kind == Race::Kind::kNone && read_in_epoch) {
    const bool same_warp = cell.reader_warp == warp;
    if (!same_warp || (cell.reader.warp_epoch == now.warp_epoch && cell.reader.thread != now.thread)) {
      kind = Race::Kind::kWriteAfterRead;
      other = cell.reader.thread == kMany || cell.reader.thread == now.thread ? kMany : cell.reader.thread;
    }
  }
  cell.writer = now;
  return kind;
}

Race RaceDetector::access(const Moment& now, size_t offset, size_t bytes, bool write) {
  Race race;
  for (size_t i = offset / 2; i < cells_.size() && 2 * i < offset + bytes; ++i) {
    uint32_t other = 0;
    const Race::Kind kind = touch(cells_[i], now, write, other);
    if (kind != Race::Kind::kNone && race.kind == Race::Kind::kNone) race = {kind, 2 * i, other};
  }
  return race;
}

Race RaceDetector::begin_copy(const Moment& now, size_t offset, size_t bytes) {
  const Race race = access(now, offset, bytes, true);
  for (size_t i = offset / 2; 2 * i < offset + bytes; ++i) cells_[i].in_flight = true;
  return race;
}

Race RaceDetector::end_copy(const Moment& now, size_t offset, size_t bytes) {
  for (size_t i = offset / 2; 2 * i < offset + bytes; ++i) cells_[i].in_flight = false;
  return access(now, offset, bytes, true);
}

}  // namespace megaslide::simt
