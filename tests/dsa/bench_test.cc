// The measuring half of bench-dsa.
#include "attention_check/bench.h"

#include <filesystem>
#include <fstream>
#include <tuple>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attention_check/peak_memory.h"
#include "attention_check/stored_case.h"
#include "attention_check/variants.h"
#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

constexpr MachinePeaks kPeaks{1e11, 1e10};

TEST(Bench, every_operator_reports_sane_figures) {
  BenchOptions o;
  o.grid = {2, 6, 7}, o.heads = 2, o.head_dim = 16, o.kernel = {3, 3, 3}, o.groups = 2, o.backward = true, o.repeat = 1, o.batch = 2;
  for (const char* op : {"dense", "dense-materialised", "window", "dsa"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      o.dtype = dtype;
      const BenchRow row = bench_operator(op, o, kPeaks);
      EXPECT_EQ(row.tokens, 168);
      EXPECT_GT(row.forward_ms, 0);
      EXPECT_GT(row.backward_ms, 0);
      EXPECT_GT(row.flop, 0);
      // fp32 arithmetic on rows of order 1; tiles round each probability to bf16 (2^-9 of it) before it meets V.
      EXPECT_LT(row.max_relative_error, dtype == DType::kF32 ? 1e-5 : 0x1p-7) << op;
      const auto j = nlohmann::json::parse(to_json_line(row));
      for (const char* field : {"op", "grid", "tokens", "dtype", "forward_ms", "backward_ms", "flop", "tflops", "bytes",
                                "peak_bytes", "max_relative_error"})
        EXPECT_TRUE(j.contains(field)) << field;
      EXPECT_EQ(j["op"], op);
    }
}

TEST(Bench, memory_of_the_materialised_operator_grows_with_the_square) {
  BenchOptions o;
  o.grid = {1, 32, 32}, o.heads = 4, o.head_dim = 8, o.repeat = 1;
  const int64_t dense = bench_operator("dense", o, kPeaks).peak_bytes, materialised = bench_operator("dense-materialised", o, kPeaks).peak_bytes;
  if (dense < 0) GTEST_SKIP() << "the system does not tell the peak";
  EXPECT_GE(materialised - dense, int64_t{4} * 4 * 1024 * 1024 * 9 / 10);
}

TEST(Bench, mistakes_are_usage_errors) {
  BenchOptions o;
  EXPECT_THROW(bench_operator("sparse", o, kPeaks), Error);
  o.groups = 7;
  EXPECT_THROW(bench_operator("dsa", o, kPeaks), Error);
  EXPECT_EQ(parse_reach("0,2.5,3"), (std::array<double, 3>{0, 2.5, 3}));
  for (const char* text : {"", "1", "1,2", "1,2,3,4", "1,2,x", "-1,2,2", "1,2,2 ", "1,,2", "nan,1,1", "1e9,1,1"})
    EXPECT_THROW(parse_reach(text), Error) << text;
}

TEST(StoredCase, what_is_no_case_is_named) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "folder.json");
  const auto error = [&](const std::string& name, const std::string& text) {
    if (!text.empty()) folder.write(name, text);
    try {
      load_stored_case(folder / "none.safetensors", folder / name);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  for (const auto& [name, text, part] : {std::tuple("folder.json", "", "folder.json: Is a directory"), {"none.json", "", "No such file"},
                                         {"cut.json", "{\"kind\": ", "cut.json:1:10: not valid JSON"}, {"list.json", "[]", "list.json: no JSON object"},
                                         {"kind.json", "{\"kind\": 3, \"batch\": -1}", "\"batch\" is -1"},
                                         {"binary.json", "\x8f\xff", "binary.json:1:1: not valid UTF-8"}}) {
    const std::string what = error(name, text);
    EXPECT_NE(what.find(part), std::string::npos) << what;
    EXPECT_NE(what.find("remedy: "), std::string::npos) << what;
  }
}

TEST(Bench, peaks_and_the_share_of_them) {
  const MachinePeaks peaks = measure_peaks(DType::kF32, 2);
  EXPECT_GT(peaks.flops, 1e8);
  EXPECT_GT(peaks.bytes_per_second, 1e8);
  EXPECT_DOUBLE_EQ(roofline_share({100, 10}, 200, 10, 4), 0.5) << "two seconds of products";
  EXPECT_DOUBLE_EQ(roofline_share({100, 10}, 100, 20, 4), 0.5) << "two seconds of memory";
}

TEST(Bench, the_plot_has_a_line_an_operator) {
  std::vector<BenchRow> rows(4);
  for (size_t i = 0; i < 4; ++i) {
    rows[i].op = i < 2 ? "dense" : "dsa";
    rows[i].tokens = i % 2 ? 2048 : 1024, rows[i].forward_ms = 1 + static_cast<double>(i), rows[i].peak_bytes = 1 << 20;
  }
  const std::string svg = to_svg(rows);
  for (const char* text : {"dense", "dsa", "Time, forward", "Peak memory", "tokens"}) EXPECT_NE(svg.find(text), std::string::npos) << text;
}

TEST(Bench, forced_kernels_and_instruction_sets) {
  BenchOptions o;
  o.grid = {2, 6, 7}, o.heads = 2, o.head_dim = 16, o.kernel = {3, 3, 3}, o.groups = 2, o.repeat = 1;
  for (const std::string& set : instruction_sets())
    for (const DsaKernel kernel : {DsaKernel::kGather, DsaKernel::kTile}) {
      limit_instruction_set(set);
      limit_dsa_kernel(kernel);
      const BenchRow row = bench_operator("dsa", o, kPeaks);
      EXPECT_EQ(row.kernel, kernel == DsaKernel::kTile ? "tile" : "gather");
      EXPECT_LT(row.max_relative_error, 1e-5) << set;
    }
  limit_instruction_set(instruction_sets().front());
  limit_dsa_kernel(DsaKernel::kAuto);
  EXPECT_THROW(limit_instruction_set("altivec"), Error);
}

}  // namespace
}  // namespace megaslide
