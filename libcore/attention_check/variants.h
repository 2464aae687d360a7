// Kernels and instruction sets forced one after the other.
#pragma once
#include <string>
#include <vector>

#include "attention_check/stored_case.h"
#include "kernels/dsa/dsa.h"
#include "kernels/tile/unit.h"
#include "tensor/dtype.h"

namespace megaslide {

// "amx" and "avx512-bf16" (tile units for bf16), "avx512", "avx2", "baseline" (vectors alone): what this processor and
// build have, best first.
std::vector<std::string> instruction_sets();
// No better one than `best` from here on; the first of instruction_sets() lifts the limit. A usage Error for another name.
void limit_instruction_set(const std::string& best);

struct Variant {
  std::string name;  // "tile", "tile_avx2", "tile_bf16_amx" …; the best vector set goes unnamed
  DType dtype = DType::kF32;
  std::string instruction_set;
  DsaKernel kernel = DsaKernel::kAuto;
};

// All ways in which kernel `name` runs cases of this kind: "dsa" as "gather" and "tile"; fp32 with each vector set, bf16
// with each tile unit and without one. `only`: that instruction set alone, unless empty.
std::vector<Variant> variants_of(CaseKind kind, const std::string& name, bool takes_bf16, const std::string& only);

// While it lives, calls of this process run the variant.
class ForcedVariant {
 public:
  explicit ForcedVariant(const Variant& v);
  ~ForcedVariant();
  ForcedVariant(const ForcedVariant&) = delete;
  ForcedVariant& operator=(const ForcedVariant&) = delete;
};

}  // namespace megaslide
