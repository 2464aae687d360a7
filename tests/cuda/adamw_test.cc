// The update on a device gives the plain bits, in every codec.
#include "kernels/simt/simt.h"
#include "tests/cuda/schedules.h"
#include "tests/adamw/state.h"

namespace megaslide {
namespace {

constexpr AdamWStep kStep{.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3,
                          .seed = 0x123456789abcdefULL};

// Around the eight elements of a thread, the blocks of moments and the elements of a CUDA block.
const int64_t kLengths[] = {0, 1, 7, 8, 9, 255, 256, 257, 2048, 2603};

// Elements from `begin` on of a state; the arrays' places follow.
AdamWState part(State& s, int64_t begin) { return s.view(begin); }

void expect_plain(Codecs codecs, int64_t n, int64_t begin, DType dtype, AdamWStep step, bool with_weight) {
  const Random random(3, RandomPurpose::kTest);
  const Gradient g(random, begin + n, 7, true);
  const State start = initial(random, codecs, begin + n, true);
  const auto* gradient = static_cast<const std::byte*>(g.data(dtype)) + begin * dtype_bytes(dtype);
  State want = start;
  step.clip = 0.7F;
  AdamWState view = part(want, begin);
  if (!with_weight) view.w = nullptr;
  plain::adamw_update(view, gradient, dtype, n, step);
  step.clip = 5;  // the factor takes its place
  const float factor = 0.7F;
  InlineStream stream;
  ++testing_support::counted.cases;
  testing_support::counted.schedules = std::size(simt::kAllOrders);
  for (const simt::Order order : simt::kAllOrders) {
    simt::set_options({.order = order});
    State got = start;
    AdamWState state = part(got, begin);
    if (!with_weight) state.w = nullptr;
    cuda::adamw_by_factor(stream, state, gradient, dtype, n, step, &factor);
    EXPECT_TRUE(same(got, want)) << name(codecs) << " " << n << " from " << begin << " " << dtype_name(dtype) << " " << simt::order_name(order);
  }
  simt::set_options({});
}

TEST(CudaAdamW, PlainBits) {
  for (const Codecs codecs : all_codecs())
    for (const int64_t n : kLengths)
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        AdamWStep step = kStep;
        // Counters around a carry, with a draw begun in its middle where gradients are fp32.
        step.first = (uint64_t{1} << 35) - static_cast<uint64_t>(n / 8 * 8) + (dtype == DType::kF32 ? 3 : 0);
        expect_plain(codecs, n, 0, dtype, step, true);
      }
}

// Arrays that no load of 16 bytes fits. Blocks of 8-bit moments begin with their arrays.
TEST(CudaAdamW, UnalignedArrays) {
  for (const Codecs codecs : all_codecs())
    if (codecs.moments != MomentCodec::kInt8) expect_plain(codecs, 300, 1, DType::kBF16, kStep, true);
}

TEST(CudaAdamW, WithoutAWeight) {
  for (const auto moments : {MomentCodec::kFp32, MomentCodec::kBf16, MomentCodec::kInt8})
    expect_plain({MasterCodec::kFp32, moments}, 517, 0, DType::kBF16, kStep, false);
}

TEST(CudaAdamW, StateStaysWhereTheFactorIsNoNumber) {
  const Random random(3, RandomPurpose::kTest);
  const Gradient g(random, 300, 7, false);
  InlineStream stream;
  const float factor = NAN;
  for (const Codecs codecs : all_codecs()) {
    const State start = initial(random, codecs, 300, false);
    State got = start;
    cuda::adamw_by_factor(stream, got.view(), g.f32.data(), DType::kF32, 300, kStep, &factor);
    EXPECT_TRUE(same(got, start)) << name(codecs);
  }
}

}  // namespace
}  // namespace megaslide
