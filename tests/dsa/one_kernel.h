// Holds DSA calls to one kernel, or bf16 products to one unit, while it lives.
#pragma once
#include "kernels/dsa/dsa.h"
#include "kernels/tile/unit.h"

namespace megaslide::testing_support {

class OneDsaKernel {
 public:
  explicit OneDsaKernel(DsaKernel only) { limit_dsa_kernel(only); }
  ~OneDsaKernel() { limit_dsa_kernel(DsaKernel::kAuto); }
  OneDsaKernel(const OneDsaKernel&) = delete;
  OneDsaKernel& operator=(const OneDsaKernel&) = delete;
};

class OneTileUnit {
 public:
  explicit OneTileUnit(TileUnit best) { limit_tile_unit(best); }
  ~OneTileUnit() { limit_tile_unit(TileUnit::kAmx); }
  OneTileUnit(const OneTileUnit&) = delete;
  OneTileUnit& operator=(const OneTileUnit&) = delete;
};

}  // namespace megaslide::testing_support
