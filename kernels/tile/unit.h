// Which unit multiplies bf16 tiles on this processor. Code for the units is compiled apart (cmake/tile.cmake) and chosen
// here at run time; without one, callers widen bf16 operands to fp32.
#pragma once

namespace megaslide {

enum class TileUnit {
  kNone,
  kAvx512,  // AVX512-BF16: vdpbf16ps
  kAmx,     // AMX-BF16 besides
};

// The best unit of this processor, this operating system and this build.
TileUnit best_tile_unit();

// The same, unless limited. Results of one unit do not
// depend on the number of threads; those of two units differ in rounding.
TileUnit tile_unit();

// Tests run the code of lesser processors: from here on no better unit than `best` is used by this process.
void limit_tile_unit(TileUnit best);

}  // namespace megaslide
