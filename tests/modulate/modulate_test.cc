#include "kernels/modulate/modulate.h"

#include "tests/support/elementwise.h"

namespace megaslide {
namespace {

using namespace testing_support;

TEST(Modulation, BlockAndHead) {
  InlineStream stream;
  const int64_t width = 5, batch = 2;
  for (int64_t e_slots : {int64_t{3}, int64_t{1}}) {
    const std::vector<float> table = normals(3 * width, 1), e = normals(batch * e_slots * width, 2),
                             dm = normals(batch * 3 * width, 3);
    std::vector<float> m(static_cast<size_t>(batch * 3 * width));
    modulation_forward(stream, m.data(), table.data(), e.data(), batch, 3, e_slots, width, 0b010, DType::kF32);
    std::vector<float> dtable(static_cast<size_t>(3 * width), 1.0F), de(e.size(), 1.0F), expected_table = dtable,
                                                                                         expected_e = de;
    modulation_backward(stream, dtable.data(), de.data(), dm.data(), batch, 3, e_slots, width);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t s = 0; s < 3; ++s)
        for (int64_t c = 0; c < width; ++c) {
          const size_t i = static_cast<size_t>((b * 3 + s) * width + c), t = static_cast<size_t>(s * width + c);
          const size_t j = static_cast<size_t>((b * e_slots + (e_slots == 1 ? 0 : s)) * width + c);
          EXPECT_FLOAT_EQ(m[i], (s == 1 ? 1.0F : 0.0F) + (table[t] + e[j]));
          expected_table[t] += dm[i];
          expected_e[j] += dm[i];
        }
    EXPECT_EQ(dtable, expected_table);
    EXPECT_EQ(de, expected_e);
    std::vector<float> narrow(m.size());
    const std::vector<bf16> narrow_table = rounded(table);
    modulation_forward(stream, narrow.data(), narrow_table.data(), e.data(), batch, 3, e_slots, width, 0b010,
                       DType::kBF16);
    EXPECT_LT(relative_error(narrow, m), kBf16);
  }
}

class GatedAdd : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t>> {};

TEST_P(GatedAdd, AgreesWithItsFormula) {
  const int64_t groups = std::get<0>(GetParam()), group_rows = std::get<1>(GetParam()), width = std::get<2>(GetParam());
  const int64_t rows = groups * group_rows, stride = 2 * width;
  const std::vector<float> x = normals(rows * width, 1), a = normals(rows * width, 2),
                           gate = normals(groups * stride, 3), dy = normals(rows * width, 4);
  std::vector<float> y(x.size()), da(x.size()), dgate(gate.size(), 0.5F), dbias(static_cast<size_t>(width), 0.5F);
  std::vector<double> sum_gate(gate.size()), sum_bias(dbias.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / static_cast<size_t>(width), c = i % static_cast<size_t>(width);
    const size_t g = row / static_cast<size_t>(group_rows) * static_cast<size_t>(stride) + c;
    y[i] = x[i] + gate[g] * a[i];
    da[i] = gate[g] * dy[i];
    sum_gate[g] += static_cast<double>(dy[i]) * static_cast<double>(a[i]);
    sum_bias[c] += static_cast<double>(da[i]);
  }
  for (size_t i = 0; i < dgate.size(); ++i) dgate[i] += static_cast<float>(sum_gate[i]);
  for (size_t i = 0; i < dbias.size(); ++i) dbias[i] += static_cast<float>(sum_bias[i]);
  for_each_target([&] {
    std::vector<float> bits[2];
    for (int threads : {1, 2}) {
      InlineStream stream(threads);
      std::vector<float> got = x, kept(x.size()), gda(x.size()), ggate(gate.size(), 0.5F), gbias(dbias.size(), 0.5F);
      std::vector<float> scratch(static_cast<size_t>(gated_add_scratch(rows, group_rows, width)), NAN);
      gated_add_forward(stream, got.data(), kept.data(), got.data(), a.data(), gate.data(), rows, width, group_rows,
                        stride, DType::kF32);
      EXPECT_EQ(kept, a);
      EXPECT_LT(relative_error(got, y), kFp32);
      gated_add_backward(stream, gda.data(), ggate.data(), gbias.data(), scratch.data(), dy.data(), kept.data(),
                         gate.data(), rows, width, group_rows, stride, DType::kF32);
      EXPECT_EQ(gda, da);
      EXPECT_LT(relative_error(ggate, dgate), kFp32);
      EXPECT_LT(relative_error(gbias, dbias), kFp32);
      std::vector<float>& all = bits[threads - 1];
      all = ggate;
      all.insert(all.end(), gbias.begin(), gbias.end());
    }
    EXPECT_EQ(bits[0], bits[1]);
  });
}

TEST_P(GatedAdd, Bf16AddsWhatItKeeps) {
  const int64_t groups = std::get<0>(GetParam()), group_rows = std::get<1>(GetParam()), width = std::get<2>(GetParam());
  const int64_t rows = groups * group_rows;
  const std::vector<float> x = normals(rows * width, 1), a = normals(rows * width, 2);
  for_each_target([&] {
    InlineStream stream;
    std::vector<float> y(x.size());
    std::vector<bf16> kept(x.size());
    gated_add_forward(stream, y.data(), kept.data(), x.data(), a.data(), nullptr, rows, width, group_rows, 0,
                      DType::kBF16);
    EXPECT_EQ(kept, rounded(a));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], x[i] + to_float(kept[i]));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, GatedAdd,
                         ::testing::Values(std::tuple{1, 1, 1}, std::tuple{2, 65, 24}, std::tuple{3, 128, 192},
                                           std::tuple{1, 7, 1537}));

}  // namespace
}  // namespace megaslide
