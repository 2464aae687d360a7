// Runs of CUDA entries under the emulator: arrays at every alignment, all four schedules, the bits of one.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/simt/simt.h"
#include "tests/support/elementwise.h"

namespace megaslide::testing_support {

// False where these tests run on a GPU.
inline bool under_emulator = true;
// What waits for kernels before results are read: nothing under the emulator.
inline void (*finish_device_work)() = [] {};

// An array of a tensor's type that begins `shift` elements behind an aligned address; given and read as floats.
class Array {
 public:
  Array(DType dtype, const std::vector<float>& values, int shift = 0)
      : dtype_(dtype), count_(static_cast<int64_t>(values.size())), shift_(shift),
        memory_(static_cast<size_t>(count_ + shift) * static_cast<size_t>(dtype_bytes(dtype)) / sizeof(Unit) + 1) {
    convert_from_f32(data(), dtype, values.data(), count_);
  }
  // Not numbers, so that what is not written is noticed.
  static Array empty(DType dtype, int64_t n, int shift = 0) { return {dtype, std::vector<float>(static_cast<size_t>(n), NAN), shift}; }
  void* data() { return reinterpret_cast<std::byte*>(memory_.data()) + shift_ * dtype_bytes(dtype_); }
  float* floats() { return static_cast<float*>(data()); }
  std::vector<float> values() {
    finish_device_work();
    std::vector<float> r(static_cast<size_t>(count_));
    convert_to_f32(r.data(), data(), dtype_, count_);
    return r;
  }

 private:
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  DType dtype_;
  int64_t count_;
  int shift_;
  std::vector<Unit> memory_;
};

// What a test ran (case_counts.cc): a case is a kernel or chain of kernels on one set of operands.
struct Counted {
  int64_t cases = 0, schedules = 0;
};
inline Counted counted;

using Results = std::vector<std::vector<float>>;

// `run` once a schedule, on arrays of its own; the results, which are the same bits in all.
inline Results in_every_schedule(const std::function<Results(Stream&)>& run) {
  InlineStream stream;
  Results first;
  ++counted.cases;
  counted.schedules = std::size(simt::kAllOrders);
  for (const simt::Order order : simt::kAllOrders) {
    simt::set_options({.order = order});
    const Results r = run(stream);
    if (first.empty()) first = r;
    EXPECT_EQ(r.size(), first.size());
    for (size_t i = 0; i < r.size(); ++i) {
      const bool same = r[i].size() == first[i].size() &&
                        (r[i].empty() || std::memcmp(r[i].data(), first[i].data(), r[i].size() * sizeof(float)) == 0);
      EXPECT_TRUE(same) << "result " << i << ", " << simt::order_name(order);
    }
  }
  simt::set_options({});
  return first;
}

inline std::vector<float> zeros(int64_t n) { return std::vector<float>(static_cast<size_t>(n)); }
// What a kernel of this type sees of fp32 values.
inline std::vector<float> as_stored(DType dtype, const std::vector<float>& v) { return Array(dtype, v).values(); }

inline void expect_close(const std::vector<float>& got, const std::vector<float>& expected, double tolerance, const char* what) {
  if (expected.empty()) return;
  EXPECT_LE(relative_error(got, expected), tolerance) << what;
}

constexpr DType kBothTypes[] = {DType::kF32, DType::kBF16};
// Of a result rounded to dtype against an unrounded one, in each element: half a unit in the last of 8 binary digits.
inline double rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0; }

}  // namespace megaslide::testing_support
