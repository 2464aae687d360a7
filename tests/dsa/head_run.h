// A call for a run of the heads of wider rows (DsaShape::row_heads) against one for rows of these heads alone.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/dsa/dsa.h"
#include "tensor/dtype.h"
#include "tests/attention/random_case.h"

namespace megaslide::testing_support {

struct DsaKernels {
  std::function<DsaForward> forward;
  std::function<DsaBackward> backward;
  std::function<int64_t(const DsaShape&, DType)> forward_bytes, backward_bytes;
};

// All that a call reads and writes: rows of `row_heads` heads of which it has those from `first` on, and of 2 · first offsets more
// on either side than it has; the others hold NaN.
class HeadRun {
 public:
  HeadRun(const DsaShape& shape, int64_t first, int64_t row_heads, DType dtype) : s_(shape), first_(first), dtype_(dtype) {
    s_.row_heads = row_heads == shape.heads ? 0 : row_heads;
    for (auto* t : {&q_, &k_, &v_, &out_, &dout_, &dq_, &dk_, &dv_}) t->assign(count(s_.row()), kPoison);
    lse_.assign(count(s_.lse_row()), kPoison);
    uint64_t key = 0;
    for (auto* t : {&q_, &k_, &v_, &dout_}) fill(*t, s_.row(), first * s_.head_dim, s_.heads * s_.head_dim, key++);
    s_.row_offsets = first == 0 ? 0 : dsa_offset_count(s_) + 4 * first;
    offsets_.assign(count(dsa_offset_row(s_)), kPoison);
    doffsets_ = offsets_;
    fill(offsets_, dsa_offset_row(s_), 2 * first, dsa_offset_count(s_), key);
  }

  void run(const DsaKernels& kernels, Stream& stream) {
    std::vector<std::vector<uint16_t>> narrow;
    const auto input = [&](const std::vector<float>& x) -> const void* {
      if (dtype_ == DType::kF32) return x.data() + first_ * s_.head_dim;
      narrow.emplace_back(x.size());
      convert_from_f32(narrow.back().data(), DType::kBF16, x.data(), static_cast<int64_t>(x.size()));
      return narrow.back().data() + first_ * s_.head_dim;
    };
    const void *q = input(q_), *k = input(k_), *v = input(v_);
    const int64_t at = first_ * s_.head_dim;
    const auto space = [](int64_t bytes) { return std::vector<double>(static_cast<size_t>(bytes) / 8 + 16); };
    std::vector<double> forward = space(kernels.forward_bytes(s_, dtype_)), backward = space(kernels.backward_bytes(s_, dtype_));
    const auto aligned = [](std::vector<double>& x) {
      return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(x.data()) + 63) / 64 * 64);
    };
    kernels.forward(stream, out_.data() + at, lse_.data() + first_, q, k, v, offsets_.data() + 2 * first_, aligned(forward), s_, dtype_);
    kernels.backward(stream, dq_.data() + at, dk_.data() + at, dv_.data() + at, doffsets_.data() + 2 * first_, q, k, v, offsets_.data() + 2 * first_,
                     out_.data() + at, lse_.data() + first_, dout_.data() + at, aligned(backward), s_, dtype_);
  }

  // That the results are those of `alone`, to the bit, and that other heads' are as they were.
  void expect_results_of(const HeadRun& alone, const std::string& what) const {
    const auto compare = [&](const std::vector<float>& mine, const std::vector<float>& theirs, int64_t row, int64_t at, int64_t own, const char* name) {
      int64_t wrong = 0;
      for (int64_t i = 0; i < static_cast<int64_t>(mine.size()); ++i) {
        const int64_t c = i % row;
        const bool inside = c >= at && c < at + own;
        const float want = inside ? theirs[static_cast<size_t>(i / row * own + c - at)] : kPoison;
        if (std::memcmp(&mine[static_cast<size_t>(i)], &want, sizeof(float)) != 0) ++wrong;
      }
      EXPECT_EQ(wrong, 0) << what << ": " << name << " of " << mine.size();
    };
    const int64_t at = first_ * s_.head_dim, own = s_.heads * s_.head_dim;
    compare(out_, alone.out_, s_.row(), at, own, "out");
    compare(lse_, alone.lse_, s_.lse_row(), first_, s_.heads, "lse");
    compare(dq_, alone.dq_, s_.row(), at, own, "dq");
    compare(dk_, alone.dk_, s_.row(), at, own, "dk");
    compare(dv_, alone.dv_, s_.row(), at, own, "dv");
    compare(doffsets_, alone.doffsets_, dsa_offset_row(s_), 2 * first_, dsa_offset_count(s_), "doffsets");
    EXPECT_TRUE(std::all_of(alone.out_.begin(), alone.out_.end(), [](float x) { return std::isfinite(x); })) << what;
  }

 private:
  static constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
  size_t count(int64_t width) const { return static_cast<size_t>(s_.batch * s_.tokens() * width); }
  static void fill(std::vector<float>& x, int64_t row, int64_t first, int64_t width, uint64_t key) {
    const std::vector<float> values = bf16_normals(static_cast<int64_t>(x.size()) / row * width, key);
    for (size_t i = 0, n = 0; i < x.size(); ++i)
      if (const int64_t c = static_cast<int64_t>(i) % row; c >= first && c < first + width) x[i] = values[n++];
  }

  DsaShape s_;
  int64_t first_;
  DType dtype_;
  std::vector<float> q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_, offsets_, doffsets_;
};

inline void expect_head_run_equals_heads_alone(const DsaKernels& kernels, Stream& stream, const DsaShape& shape, DType dtype,
                                               const std::string& what) {
  HeadRun alone(shape, 0, shape.heads, dtype);
  alone.run(kernels, stream);
  for (const int64_t first : {int64_t{0}, int64_t{2}}) {
    HeadRun run(shape, first, shape.heads + 3, dtype);
    run.run(kernels, stream);
    run.expect_results_of(alone, fmt::format("{}, heads from {} on", what, first));
  }
}

}  // namespace megaslide::testing_support
