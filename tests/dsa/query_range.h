// A call for the queries of some frames (DsaShape::query_frames) against one for all, at whose other results there is no
// gradient.
#pragma once
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/dsa/head_run.h"

namespace megaslide::testing_support {

struct DsaTensors {
  DsaTensors(const DsaShape& s, uint64_t seed)
      : q(normals(s.tokens() * s.row(), seed)), k(normals(s.tokens() * s.row(), seed + 1)), v(normals(s.tokens() * s.row(), seed + 2)),
        dout(normals(s.tokens() * s.row(), seed + 3)), offsets(normals(s.tokens() * dsa_offset_row(s), seed + 4)) {
    for (auto* t : {&out, &dq, &dk, &dv}) t->assign(q.size(), kPoison);
    lse.assign(static_cast<size_t>(s.tokens() * s.lse_row()), kPoison);
    doffsets.assign(offsets.size(), kPoison);
  }
  // One forward and one backward.
  void run(const DsaKernels& kernels, Stream& stream, const DsaShape& s, DType dtype) {
    std::vector<std::vector<uint32_t>> inputs;
    for (const auto* x : {&q, &k, &v}) {
      inputs.emplace_back(x->size());
      convert_from_f32(inputs.back().data(), dtype, x->data(), static_cast<int64_t>(x->size()));
    }
    std::vector<double> forward(static_cast<size_t>(kernels.forward_bytes(s, dtype)) / 8 + 16), backward(static_cast<size_t>(kernels.backward_bytes(s, dtype)) / 8 + 16);
    const auto aligned = [](std::vector<double>& x) { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(x.data()) + 63) / 64 * 64); };
    kernels.forward(stream, out.data(), lse.data(), inputs[0].data(), inputs[1].data(), inputs[2].data(), offsets.data(), aligned(forward), s, dtype);
    kernels.backward(stream, dq.data(), dk.data(), dv.data(), doffsets.data(), inputs[0].data(), inputs[1].data(), inputs[2].data(), offsets.data(),
                     out.data(), lse.data(), dout.data(), aligned(backward), s, dtype);
  }

  static constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
  static std::vector<float> normals(int64_t n, uint64_t seed) { return bf16_normals(n, seed); }
  std::vector<float> q, k, v, dout, offsets, out, lse, dq, dk, dv, doffsets;
};

inline void expect_query_range(const DsaKernels& kernels, Stream& stream, DsaShape shape, int64_t begin, int64_t frames, DType dtype,
                               const std::string& what) {
  const int64_t plane = shape.height * shape.width;
  const auto outside = [&](size_t i, size_t size) {
    const auto frame = static_cast<int64_t>(i / (size / static_cast<size_t>(shape.frames)));
    return frame < begin || frame >= begin + frames;
  };
  DsaTensors all(shape, 70), some(shape, 70);
  for (size_t i = 0; i < all.dout.size(); ++i)
    if (outside(i, all.dout.size())) all.dout[i] = 0, some.q[i] = some.dout[i] = DsaTensors::kPoison;
  for (size_t i = 0; i < some.offsets.size(); ++i)
    if (outside(i, some.offsets.size())) some.offsets[i] = DsaTensors::kPoison;
  all.run(kernels, stream, shape, dtype);
  shape.query_begin = begin, shape.query_frames = frames;
  some.run(kernels, stream, shape, dtype);
  const auto compare = [&](const std::vector<float>& x, const std::vector<float>& whole, const char* name) {
    int64_t wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) wrong += outside(i, x.size()) ? !std::isnan(x[i]) : x[i] != whole[i];
    EXPECT_EQ(wrong, 0) << what << ": " << name << " of " << x.size() << ", plane of " << plane;
  };
  compare(some.out, all.out, "out");
  compare(some.lse, all.lse, "lse");
  compare(some.dq, all.dq, "dq");
  EXPECT_EQ(some.doffsets, all.doffsets) << what;
  // Sums over queries are grouped by where the queries begin: a few roundings of fp32, or of the weights to bf16.
  const double tolerance = dtype == DType::kBF16 ? 4e-3 : 1e-6;
  for (const auto& [mine, whole, name] : {std::tuple{&some.dk, &all.dk, "dk"}, {&some.dv, &all.dv, "dv"}}) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < mine->size(); ++i) {
      difference += std::pow(static_cast<double>((*mine)[i]) - (*whole)[i], 2);
      size += std::pow(static_cast<double>((*whole)[i]), 2);
    }
    EXPECT_LE(difference, tolerance * tolerance * size) << what << ": " << name;
  }
}

}  // namespace megaslide::testing_support
