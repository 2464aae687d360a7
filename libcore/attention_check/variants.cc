#include "attention_check/variants.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/error.h"
#include "kernels/vector_set.h"

namespace megaslide {
namespace {

constexpr const char *kAmx = "amx", *kAvx512Bf16 = "avx512-bf16";

bool is_unit(const std::string& set) { return set == kAmx || set == kAvx512Bf16; }

}  // namespace

std::vector<std::string> instruction_sets() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> sets;
    const TileUnit best = best_tile_unit();
    if (best == TileUnit::kAmx) sets.push_back(kAmx);
    if (best != TileUnit::kNone) sets.push_back(kAvx512Bf16);
    for (const std::string& s : vector_sets()) sets.push_back(s);
    return sets;
  }();
  return all;
}

void limit_instruction_set(const std::string& best) {
  const std::vector<std::string> all = instruction_sets();
  if (std::find(all.begin(), all.end(), best) == all.end())
    throw usage_error(fmt::format("this processor or build has no instruction set \"{}\"", best), fmt::format("use one of {}", fmt::join(all, ", ")));
  limit_tile_unit(best == kAmx ? TileUnit::kAmx : best == kAvx512Bf16 ? TileUnit::kAvx512 : TileUnit::kNone);
  limit_vector_set(is_unit(best) ? vector_sets().front() : best);
}

std::vector<Variant> variants_of(CaseKind kind, const std::string& name, bool takes_bf16, const std::string& only) {
  std::vector<Variant> out;
  const auto add = [&](const std::string& base, DsaKernel kernel) {
    for (const std::string& set : instruction_sets()) {
      if (!only.empty() && set != only) continue;
      const bool best_vectors = set == vector_sets().front();
      if (!is_unit(set)) out.push_back({base + (best_vectors ? "" : "_" + set), DType::kF32, set, kernel});
      // Gathering has no use for tiles; without a unit bf16 is widened, whatever the vectors.
      if (takes_bf16 && (is_unit(set) ? kernel != DsaKernel::kGather : best_vectors || !only.empty()))
        out.push_back({base + "_bf16" + (best_vectors ? "" : "_" + set), DType::kBF16, set, kernel});
    }
  };
  if (kind == CaseKind::kDsa) {
    add("gather", DsaKernel::kGather);
    add("tile", DsaKernel::kTile);
  } else {
    add(name, DsaKernel::kAuto);
  }
  return out;
}

ForcedVariant::ForcedVariant(const Variant& v) {
  limit_instruction_set(v.instruction_set);
  limit_dsa_kernel(v.kernel);
}

ForcedVariant::~ForcedVariant() {
  limit_instruction_set(instruction_sets().front());
  limit_dsa_kernel(DsaKernel::kAuto);
}

}  // namespace megaslide
