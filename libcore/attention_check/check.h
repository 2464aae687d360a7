// Runs a stored case through every kernel that can run it and compares with the stored results.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention_check/stored_case.h"
#include "kernels/stream.h"

namespace megaslide {

struct TestedKernel;

struct KernelCheck {
  std::string case_name;
  std::string kernel;  // "reference", or a Variant's name: "gather", "tile_bf16_amx" …
  // Relative L2 errors and what is allowed, by tensor.
  std::map<std::string, double> error, tolerance;
  bool ok = true;
};

// `only`: an instruction set (variants.h) instead of all.
std::vector<KernelCheck> check_case(const StoredCase& c, Stream& stream, const std::string& only = {});
// Through kernels of the caller's instead, without the reference; "_bf16" behind a name where q, k and v are bf16.
std::vector<KernelCheck> check_kernels(const StoredCase& c, Stream& stream, const std::vector<TestedKernel>& kernels);

// {case, kernel, out, dq, dk, dv, doffsets, lse, …, ok, tolerance: {…}} on one line; null where a kind has no such tensor.
std::string to_json_line(const KernelCheck& check);

// ‖a − b‖ / ‖b‖, and ‖a‖ where b is zero. Infinity where a value is not finite or the sizes differ.
template <class T>  // float or double
double relative_error(const std::vector<double>& a, const std::vector<T>& b);
extern template double relative_error(const std::vector<double>&, const std::vector<float>&);
extern template double relative_error(const std::vector<double>&, const std::vector<double>&);

}  // namespace megaslide
