// Shapes of random DSA cases by the fields that a test cares for, on a grid of T × H × W unless it names another.
#pragma once
#include <array>
#include <cstdint>

#include "attention_check/stored_case.h"
#include "tests/attention/random_case.h"

namespace megaslide::testing_support {

template <int64_t T, int64_t H, int64_t W>
struct DsaSpec {
  std::array<int64_t, 3> grid{T, H, W}, kernel{3, 3, 3};
  std::array<double, 3> reach{1, 2, 2};
  DsaOffsetMode mode = DsaOffsetMode::kFull;
  int64_t heads = 2, head_dim = 8, groups = 2, batch = 1;
};

template <int64_t T, int64_t H, int64_t W>
StoredCase make_dsa_case(const DsaSpec<T, H, W>& s) {
  StoredCase c;
  c.kind = CaseKind::kDsa, c.batch = s.batch, c.grid = s.grid, c.heads = s.heads, c.head_dim = s.head_dim;
  c.kernel = s.kernel, c.reach = s.reach, c.mode = s.mode, c.groups = s.groups;
  fill_inputs(c);
  return c;
}

inline constexpr DsaOffsetMode kModes[] = {DsaOffsetMode::kFull, DsaOffsetMode::kSlice, DsaOffsetMode::kRigid};

}  // namespace megaslide::testing_support
