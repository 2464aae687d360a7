// The measuring half of bench-dsa.
#include "attention_check/bench.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attention_check/peak_memory.h"
#include "base/error.h"

namespace megaslide {
namespace {

TEST(Bench, every_operator_reports_sane_figures) {
  BenchOptions o;
  o.grid = {2, 6, 7}, o.heads = 2, o.head_dim = 16, o.kernel = {3, 3, 3}, o.groups = 2, o.backward = true, o.repeat = 1, o.batch = 2;
  for (const char* op : {"dense", "dense-materialised", "window", "dsa"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      o.dtype = dtype;
      const BenchRow row = bench_operator(op, o);
      EXPECT_EQ(row.tokens, 168);
      EXPECT_GT(row.forward_ms, 0);
      EXPECT_GT(row.backward_ms, 0);
      EXPECT_GT(row.flop, 0);
      EXPECT_LT(row.max_relative_error, 1e-5) << op;  // fp32 arithmetic on rows of order 1
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
  const int64_t dense = bench_operator("dense", o).peak_bytes, materialised = bench_operator("dense-materialised", o).peak_bytes;
  if (dense < 0) GTEST_SKIP() << "the system does not tell the peak";
  EXPECT_GE(materialised - dense, int64_t{4} * 4 * 1024 * 1024 * 9 / 10);
}

TEST(Bench, mistakes_are_usage_errors) {
  BenchOptions o;
  EXPECT_THROW(bench_operator("sparse", o), Error);
  o.groups = 7;
  EXPECT_THROW(bench_operator("dsa", o), Error);
  EXPECT_EQ(parse_reach("0,2.5,3"), (std::array<double, 3>{0, 2.5, 3}));
  for (const char* text : {"", "1", "1,2", "1,2,3,4", "1,2,x", "-1,2,2", "1,2,2 ", "1,,2", "nan,1,1", "1e9,1,1"})
    EXPECT_THROW(parse_reach(text), Error) << text;
}

}  // namespace
}  // namespace megaslide
