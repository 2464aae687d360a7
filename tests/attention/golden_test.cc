// Stored cases: PyTorch's fp64 results for every operator.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <unistd.h>

#include <gtest/gtest.h>

#include "attention_check/check.h"
#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

std::vector<std::string> cases_in(const std::filesystem::path& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

void expect_all_pass(const std::filesystem::path& folder, size_t at_least) {
  const auto paths = cases_in(folder);
  EXPECT_GE(paths.size(), at_least);
  InlineStream stream(2);
  for (const std::string& path : paths) {
    const StoredCase c = load_stored_case(path, case_json_path(path));
    const auto checks = check_case(c, stream);
    EXPECT_GE(checks.size(), 4u) << "reference in fp64 and fp32, and a kernel in fp32 and bf16";
    for (const KernelCheck& check : checks) EXPECT_TRUE(check.ok) << to_json_line(check);
  }
}

TEST(Golden, stored_cases_pass) { expect_all_pass(MEGASLIDE_TEST_DATA "/dsa", 37); }

TEST(Golden, WholeGoldenFolderPasses) {
  const char* golden = std::getenv("MEGASLIDE_GOLDEN");
  if (golden == nullptr) GTEST_SKIP() << "MEGASLIDE_GOLDEN names no folder";
  expect_all_pass(std::string(golden) + "/dsa", 46);
}

// A check that cannot fail is none: each tensor of each kind of case, damaged, must be noticed by every kernel.
TEST(Golden, wrong_results_are_noticed) {
  InlineStream stream(1);
  for (const char* name : {"full_cuts", "dense", "window_333_odd", "pooled_tiny", "offset_net_rigid", "motion_slice_cuts"}) {
    const std::string path = std::string(MEGASLIDE_TEST_DATA "/dsa/") + name + ".safetensors";
    const StoredCase good = load_stored_case(path, case_json_path(path));
    const auto errors = check_case(good, stream).front().error;
    for (const auto& [tensor, error] : errors) {
      StoredCase c = good;
      // By more than any plain 16-bit error of these cases.
      for (float& x : c.tensors[tensor]) x *= 1.25f;
      for (const KernelCheck& check : check_case(c, stream)) {
        // In a pooled case of one tile the softmax is 1 and these gradients are 0, times anything.
        if (std::all_of(c.at(tensor).begin(), c.at(tensor).end(), [](float x) { return x == 0; })) continue;
        EXPECT_FALSE(check.ok) << name << " " << tensor << " " << check.kernel;
      }
    }
  }
}

std::string load_error(const std::string& safetensors, const std::string& json) {
  try {
    load_stored_case(safetensors, json);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Golden, damaged_cases_are_errors_with_the_file_named) {
  const std::string folder = MEGASLIDE_TEST_DATA "/dsa/";
  const TemporaryFolder folder_of_cases;
  const std::string temporary = folder_of_cases / "case.json";
  const auto json = [&](const std::string& text) {
    folder_of_cases.write("case.json", text);
    return load_error(folder + "full_n1.safetensors", temporary);
  };
  const std::string start = R"({"kind":"dsa","mode":"full","batch":1,"heads":2,"head_dim":8,"scale":1,"groups":1,)";
  EXPECT_NE(load_error(folder + "full_n1.safetensors", folder + "none.json").find("none.json"), std::string::npos);
  EXPECT_NE(load_error(folder + "none.safetensors", folder + "full_n1.json"), "");
  EXPECT_NE(load_error(folder + "dense.safetensors", folder + "full_n1.json").find("dense.safetensors"), std::string::npos);
  EXPECT_NE(json("").find(temporary), std::string::npos);
  EXPECT_NE(json("[]").find("no JSON object"), std::string::npos);
  EXPECT_NE(json("{\"kind\":3}"), "");
  EXPECT_NE(json(R"({"kind":"other","batch":1,"grid_thw":[1,1,1],"heads":1,"head_dim":1,"scale":1})").find("other"), std::string::npos);
  EXPECT_NE(json(start + R"("grid_thw":[1,1],"kernel_thw":[3,3,3],"reach_thw":[1,2,2]})").find("grid_thw"), std::string::npos);
  EXPECT_NE(json(start + R"("grid_thw":[1,1,-1],"kernel_thw":[3,3,3],"reach_thw":[1,2,2]})").find("grid_thw"), std::string::npos);
  EXPECT_NE(json(start + R"("grid_thw":[1,1,1],"kernel_thw":[3,3,0],"reach_thw":[1,2,2]})").find("kernel_thw"), std::string::npos);
  EXPECT_NE(json(start + R"("grid_thw":[1,1,1],"kernel_thw":[3,3,3],"reach_thw":[1,-2,2]})").find("reach_thw"), std::string::npos);
  EXPECT_NE(json(start + R"("grid_thw":[1,1,1],"kernel_thw":[3,3,3],"reach_thw":[1,2,2],"t_lo":[1],"t_hi":[0]})").find("t_lo"), std::string::npos);
  const std::string motion = R"({"kind":"motion","batch":1,"grid_thw":[1,1,1],"kernel_thw":[3,3,3],"groups":1,"channels":4,"search":4,"beta_base":20,"unit_eps":1e-12,)";
  EXPECT_NE(json(motion + R"("proj_channels":16,"mode":"rigid"})").find("slice"), std::string::npos);
  EXPECT_NE(json(motion + R"("proj_channels":8,"mode":"slice"})").find("16 channels"), std::string::npos);
  EXPECT_NE(json(start + R"("grid_thw":[9000,9000,9000],"kernel_thw":[3,3,3],"reach_thw":[1,2,2]})"), "");
}

}  // namespace
}  // namespace megaslide
