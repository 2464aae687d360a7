// The emulator runs correct kernels to the right bits in every schedule, and finds each fault.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/simt/simt.h"
#include "tests/simt/kernels.h"

namespace megaslide {
namespace {

using namespace simt_test;  // NOLINT: the kernels under test

// body() in every schedule; the message of each fault, empty where there was none.
std::vector<std::string> in_all_orders(const std::function<void()>& body) {
  std::vector<std::string> faults;
  for (const simt::Order order : simt::kAllOrders) {
    simt::set_options({.order = order});
    std::string what;
    try {
      body();
    } catch (const simt::Error& e) {
      what = e.what();
    }
    faults.push_back(what);
  }
  simt::set_options({});
  return faults;
}
void expect_no_fault(const std::function<void()>& body) {
  for (const std::string& what : in_all_orders(body)) EXPECT_EQ(what, "");
}
void expect_fault(const std::string& part, const std::function<void()>& body) {
  for (const std::string& what : in_all_orders(body)) EXPECT_NE(what.find(part), std::string::npos) << "\"" << what << "\"";
}

struct Matmul {
  static constexpr int kM = 128, kN = 64, kK = 128;
  Matmul() {
    const Random random(5, RandomPurpose::kTest);
    for (size_t i = 0; i < a.size(); ++i) a[i] = to_bf16(static_cast<float>(random.normal(1, i)));
    for (size_t i = 0; i < b.size(); ++i) b[i] = to_bf16(static_cast<float>(random.normal(2, i)));
  }
  void run(MatmulFault fault) {
    out.assign(kM * kN, NAN);
    InlineStream stream;
    matmul(stream, out.data(), a.data(), b.data(), kM, kN, kK, fault);
  }
  std::vector<bf16> a = std::vector<bf16>(kM * kK), b = std::vector<bf16>(kN * kK);
  std::vector<float> out;
};

TEST(Simt, matmul_in_every_schedule) {
  Matmul x;
  expect_no_fault([&] {
    x.run(MatmulFault::kNone);
    for (size_t i = 0; i < Matmul::kM; ++i)
      for (size_t j = 0; j < Matmul::kN; ++j) {
        double sum = 0, size = 0;
        for (size_t k = 0; k < Matmul::kK; ++k) {
          const double term = static_cast<double>(to_float(x.a[i * Matmul::kK + k])) * to_float(x.b[j * Matmul::kK + k]);
          sum += term, size += std::fabs(term);
        }
        // Products of bf16 are exact in fp32; each of the K additions rounds a partial sum of at most `size`.
        EXPECT_NEAR(x.out[i * Matmul::kN + j], sum, Matmul::kK * 0x1p-24 * size);
      }
  });
}

TEST(Simt, faults_of_pipelined_copies) {
  Matmul x;
  expect_fault("cp.async is still bringing", [&] { x.run(MatmulFault::kWaitOneTooFew); });
  expect_fault("race on byte", [&] { x.run(MatmulFault::kNoBarrierAfterWait); });
  expect_fault("race on byte", [&] { x.run(MatmulFault::kNoBarrierBeforeRefill); });
}

// Both places are named.
TEST(Simt, divergent_barrier) {
  Matmul x;
  expect_fault("divergent __syncthreads: ", [&] { x.run(MatmulFault::kDivergentBarrier); });
  const std::string what = in_all_orders([&] { x.run(MatmulFault::kDivergentBarrier); }).front();
  const size_t first = what.find("matmul.cu:"), second = what.find("matmul.cu:", first + 1);
  ASSERT_NE(second, std::string::npos) << what;
  EXPECT_NE(what.substr(first, 14), what.substr(second, 14)) << what;
}

TEST(Simt, layernorm_in_every_schedule) {
  constexpr int kRows = 5, kChannels = 300;
  std::vector<float> in(kRows * kChannels), first;
  const Random random(7, RandomPurpose::kTest);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(random.normal(3, i));
  InlineStream stream;
  expect_no_fault([&] {
    std::vector<float> out(in.size(), NAN);
    layernorm(stream, out.data(), in.data(), kRows, kChannels, 96);
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
    for (size_t r = 0; r < kRows; ++r) {
      double sum = 0, square = 0;
      for (size_t i = 0; i < kChannels; ++i) sum += out[r * kChannels + i], square += std::pow(out[r * kChannels + i], 2);
      EXPECT_NEAR(sum / kChannels, 0, 1e-6);          // roundings of values near 1
      EXPECT_NEAR(square / kChannels, 1, 2e-5);       // the 1e-5 below the root
    }
  });
}

#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
TEST(Simt, races_on_shared_memory) {
  InlineStream stream;
  std::vector<int> out(64);
  expect_no_fault([&] {
    neighbour(stream, out.data(), RaceFault::kNone);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], (i + 32) % 64);
  });
  // Either thread may come second.
  const auto race = [&](RaceFault fault) {
    return in_all_orders([&, fault] { neighbour(stream, out.data(), fault); });
  };
  for (const RaceFault fault : {RaceFault::kNoBlockBarrier, RaceFault::kNoWarpBarrier, RaceFault::kSameWord, RaceFault::kOverwrite})
    for (const std::string& what : race(fault)) EXPECT_NE(what.find("race on byte"), std::string::npos) << static_cast<int>(fault) << what;
  EXPECT_NE(race(RaceFault::kSameWord)[0].find("race on byte 256 "), std::string::npos);
}
#endif

TEST(Simt, faults_of_warp_wide_calls_and_copies) {
  InlineStream stream;
  alignas(16) float in[64];
  std::vector<float> out(64);
  for (int i = 0; i < 64; ++i) in[i] = static_cast<float>(i);
  const auto run = [&](CallFault fault) { return [&, fault] { calls(stream, out.data(), in, fault); }; };
  expect_no_fault(run(CallFault::kNone));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(i + (i ^ 1)));
  expect_fault("waits for a lane that is elsewhere", run(CallFault::kExitBeforeCall));
  expect_fault("divergent warp", run(CallFault::kDivergentCall));
  expect_fault("whole warps", run(CallFault::kPartialMask));
  expect_fault("without a wait before the end", run(CallFault::kCopyNotWaitedFor));
  expect_fault("not aligned", run(CallFault::kMisaligned));
  expect_fault("waits for a lane that is elsewhere", run(CallFault::kDeadlock));
  // The emulator is fit for use after a fault.
  expect_no_fault(run(CallFault::kNone));
}

TEST(Simt, launches_that_no_device_takes) {
  const auto message = [](simt::Extent grid, simt::Extent block, size_t bytes) -> std::string {
    try {
      simt::run_grid(grid, block, bytes, [] {});
    } catch (const simt::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message({}, {32, 1, 1}, 0), "");
  EXPECT_NE(message({}, {33, 1, 1}, 0), "");
  EXPECT_NE(message({}, {2048, 1, 1}, 0), "");
  EXPECT_NE(message({0, 1, 1}, {32, 1, 1}, 0), "");
  EXPECT_NE(message({1, 70000, 1}, {32, 1, 1}, 0), "");
  EXPECT_NE(message({}, {32, 1, 1}, simt::kMaxSharedBytes + 1), "");
}

#ifdef __SANITIZE_ADDRESS__
TEST(SimtDeathTest, address_sanitizer_sees_the_end_of_shared_memory) {
  InlineStream stream;
  write_shared(stream, 63);
  EXPECT_DEATH(write_shared(stream, 64), "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace megaslide
