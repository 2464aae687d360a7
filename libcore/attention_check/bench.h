// Measures attention operators on one shape.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attention_check/peaks.h"
#include "kernels/dsa/dsa.h"
#include "tensor/dtype.h"

namespace megaslide {

struct BenchOptions {
  std::array<int64_t, 3> grid{5, 8, 8};  // T, H, W
  int64_t batch = 1, heads = 6, head_dim = 32;
  std::array<int64_t, 3> kernel{3, 7, 7};  // of dsa, and the window's size
  std::array<double, 3> reach{1, 2, 2};
  DsaOffsetMode mode = DsaOffsetMode::kFull;
  int64_t groups = 4;
  DType dtype = DType::kF32;  // of q, k and v
  bool backward = false;
  int64_t repeat = 3;
  uint64_t seed = 0;
  int threads = 1;
};

struct BenchRow {
  std::string op;
  std::string kernel;          // of dsa: "tile" or "gather"; else empty
  std::array<int64_t, 3> grid;
  int64_t tokens = 0;
  DType dtype = DType::kF32;
  double forward_ms = 0;       // median of the repeats, after one run that is not counted
  double backward_ms = -1;     // < 0: not run
  double flop = 0;             // of the operator as defined: interpolation, halo and recomputation not counted
  double tflops = 0;           // flop over the time of all that was run
  double bytes = 0;            // of its tensors, once each
  int64_t peak_bytes = 0;      // measured: resident memory above what was there before, inputs included
  double roofline = 0;         // the least time that the machine's peaks allow for flop and bytes, over the time taken
  double max_relative_error = 0;  // of the output rows of up to 64 queries and heads, against fp64
};

// "1,2,2": t, h, w, each 0 or more. Throws a usage Error.
std::array<double, 3> parse_reach(const std::string& text);

// The shape's and the options' relations. Throws a usage Error.
void validate(const BenchOptions& o);

// dense, dense-materialised, window or dsa; a usage Error for any other name.
void validate_operator(const std::string& op);
BenchRow bench_operator(const std::string& op, const BenchOptions& o, const MachinePeaks& peaks);

std::string to_json_line(const BenchRow& row);
std::string table_header();
std::string to_table_line(const BenchRow& row);
// Time and peak memory against tokens, both axes logarithmic: an SVG with a line an operator.
std::string to_svg(const std::vector<BenchRow>& rows);

}  // namespace megaslide
