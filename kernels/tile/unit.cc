#include "kernels/tile/unit.h"

#include <algorithm>
#include <atomic>

#if MEGASLIDE_TILE
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace megaslide {
namespace {

#if MEGASLIDE_TILE
// Bits of CPUID leaf 7, register EDX.
constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;

// Linux hands out the tiles' 8 KiB of state on request only; once a process, threads inherit it.
bool request_tiles() {
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

TileUnit detect() {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("avx512bf16"))
    return TileUnit::kNone;
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBoth = kAmxBf16 | kAmxTile;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBoth) != kBoth) return TileUnit::kAvx512;
  return request_tiles() ? TileUnit::kAmx : TileUnit::kAvx512;
}
#else
TileUnit detect() { return TileUnit::kNone; }
#endif

std::atomic<TileUnit> limit{TileUnit::kAmx};

}  // namespace

TileUnit best_tile_unit() {
  static const TileUnit found = detect();
  return found;
}

TileUnit tile_unit() { return std::min(best_tile_unit(), limit.load(std::memory_order_relaxed)); }

void limit_tile_unit(TileUnit best) { limit.store(best, std::memory_order_relaxed); }

}  // namespace megaslide
