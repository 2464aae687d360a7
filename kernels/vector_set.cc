#include "kernels/vector_set.h"

#include "base/error.h"
#include "base/library_versions.h"
#include "hwy/highway.h"

namespace megaslide {
namespace {

// Targets no better than a set: a better target has a lower bit.
int64_t targets_of(const std::string& best) {
#if HWY_ARCH_X86
  if (best == "avx2") return ~(int64_t{HWY_AVX2} - 1);
  if (best == "baseline") return ~(2 * int64_t{HWY_AVX2} - 1);
#endif
  return ~int64_t{0};
}

}  // namespace

std::vector<std::string> vector_sets() {
#if HWY_ARCH_X86
  static const int64_t supported = hwy::SupportedTargets();
  std::vector<std::string> sets;
  if (supported & (2 * int64_t{HWY_AVX3} - 1)) sets.push_back("avx512");
  if (supported & (2 * int64_t{HWY_AVX2} - 1)) sets.push_back("avx2");
  sets.push_back("baseline");
  return sets;
#else
  return {"baseline"};
#endif
}

void limit_vector_set(const std::string& best) {
  const std::vector<std::string> sets = vector_sets();
  bool known = false;
  for (const std::string& s : sets) known = known || s == best;
  MS_CHECK(known, "{}", best);
  hwy::SetSupportedTargetsForTest(0);
  if (best != sets.front()) hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & targets_of(best));
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::string version_of_highway() { return fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH); }

}  // namespace megaslide
