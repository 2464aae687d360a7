// PyTorch's fp64 results against the CUDA kernels under the emulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "attention_check/emulated.h"
#include "kernels/dsa/dsa_cuda.h"
#include "kernels/simt/simt.h"
#include "tests/cuda/schedules.h"

namespace megaslide {
namespace {

using testing_support::counted;

std::vector<StoredCase> stored_cases() {
  std::vector<StoredCase> cases;
  for (const auto& entry : std::filesystem::directory_iterator(MEGASLIDE_TEST_DATA "/dsa"))
    if (entry.path().extension() == ".safetensors")
      cases.push_back(load_stored_case(entry.path().string(), case_json_path(entry.path().string())));
  std::sort(cases.begin(), cases.end(), [](const StoredCase& a, const StoredCase& b) { return a.name < b.name; });
  return cases;
}

// The largest ones take the emulator seconds each, and hold nothing for it that smaller ones lack.
constexpr const char* kLarge[] = {"full_155_rt0", "full_q16", "full_zero_offset", "slice_533_d64", "full_even_244",
                                  "rigid_saturated", "motion_slice_533_batch2"};

TEST(Cuda, stored_cases_pass) {
  InlineStream stream;
  size_t checked = 0;
  for (const StoredCase& c : stored_cases()) {
    if (std::find(std::begin(kLarge), std::end(kLarge), c.name) != std::end(kLarge)) continue;
    for (const KernelCheck& check : check_emulated(c, stream)) {
      EXPECT_TRUE(check.ok) << to_json_line(check);
      ++checked, ++counted.cases;
    }
  }
  EXPECT_GE(checked, 71u);
}

// The same bits whichever thread runs first: small cases of each kind.
constexpr const char* kScheduled[] = {"full_one_axis_w", "slice_h1", "dense", "window_gt_grid_odd", "pooled_tiny",
                                      "offset_net_rigid", "motion_small_grid"};

TEST(Cuda, same_bits_in_every_schedule) {
  InlineStream stream;
  size_t compared = 0;
  for (const StoredCase& c : stored_cases()) {
    if (std::find(std::begin(kScheduled), std::end(kScheduled), c.name) == std::end(kScheduled)) continue;
    for (const TestedKernel& kernel : emulated_kernels(c.kind))
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        if (dtype == DType::kF32 && !kernel.takes_f32) continue;
        NamedResults first;
        ++counted.cases;
        counted.schedules = std::size(simt::kAllOrders);
        for (const simt::Order order : simt::kAllOrders) {
          simt::set_options({.order = order});
          const NamedResults r = kernel.run(c, dtype, stream);
          if (first.empty()) first = r;
          EXPECT_EQ(r, first) << c.name << " " << kernel.name << " " << simt::order_name(order);
          ++compared;
        }
      }
  }
  simt::set_options({});
  EXPECT_GE(compared, 8 * std::size(kScheduled));
}

// A check that cannot fail is none.
TEST(Cuda, wrong_results_are_noticed) {
  InlineStream stream;
  const std::string path = MEGASLIDE_TEST_DATA "/dsa/slice_h1.safetensors";
  const StoredCase good = load_stored_case(path, case_json_path(path));
  for (const char* tensor : {"out", "dk", "doffsets"}) {
    StoredCase c = good;
    for (float& x : c.tensors[tensor]) x *= 1.25f;
    for (const KernelCheck& check : check_emulated(c, stream)) EXPECT_FALSE(check.ok) << tensor << " " << check.kernel;
  }
}

TEST(Cuda, bands_of_frames_change_no_bit) {
  InlineStream stream;
  for (const StoredCase& c : stored_cases()) {
    if (c.name != "full_cuts" && c.name != "slice_h1") continue;
    const auto run = emulated_kernels(CaseKind::kDsa).front().run;
    const NamedResults whole = run(c, DType::kF32, stream);
    cuda::limit_dsa_band(1);  // a frame a band
    EXPECT_EQ(run(c, DType::kF32, stream), whole) << c.name;
    cuda::limit_dsa_band(int64_t{1} << 30);
  }
}

}  // namespace
}  // namespace megaslide
