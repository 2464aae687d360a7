// Counts what is no finite number in a stream of stored values: weights that would ruin a training run silently.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace megaslide {

class NonFiniteScan {
 public:
  // Types without infinity or NaN, and integers, have none. F32, BF16, F16, F64, F8_E4M3 and F8_E5M2 are looked at.
  explicit NonFiniteScan(DType dtype) : dtype_(dtype) {}
  void add(std::span<const std::byte> piece);  // whole elements, any alignment

  int64_t nans() const { return nans_; }
  int64_t infinities() const { return infinities_; }
  int64_t first() const { return first_; }  // index of the first one; -1: none

 private:
  template <class Bits>
  void scan(std::span<const std::byte> piece, Bits exponent, Bits fraction);

  DType dtype_;
  int64_t seen_ = 0, nans_ = 0, infinities_ = 0, first_ = -1;
};

}  // namespace megaslide
