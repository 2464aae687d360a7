#include "attention_check/check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "attention_check/run_kernels.h"
#include "attention_check/variants.h"

namespace megaslide {
namespace {

// What every result may be off by, besides the error of a plain computation: stored values are fp64 results rounded to
// fp32 (2⁻²⁵ of each, at most), and a tensor whose plain error happens to be tiny or zero (a softmax over one key)
// still sees a few roundings on another path: exp, log, division, three interpolations. Eight units of 2⁻²⁴.
constexpr double kFloor = 8 * 0x1p-24;

// What fp32 itself is off by in the motion term, measured on the stored cases by the library that made them
// (golden/README: "at most"). A plain computation may do better by chance, ds above all: one sum whose terms cancel.
double motion_noise(const std::string& name) {
  if (name == "ds") return 6e-5;
  return name == "m" || name == "offsets" ? 9e-7 : 1.1e-6;
}

// The rule of spec dsa.md §7: twice the error of a plain 16-bit computation, and the floor. Kernels that read fp32 are
// held to a plain fp32 computation as well: within four times its error, since they add the same numbers in another
// order (score space against interpolated vectors) and order alone moves an fp32 sum by such factors.
// Plain errors are those against our own fp64 results: a wrong stored result must not widen its own tolerance.
std::map<std::string, double> tolerances(CaseKind kind, const NamedResults& f64, const NamedResults& bf16,
                                         const NamedResults& f32, bool reads_bf16) {
  std::map<std::string, double> r;
  for (const auto& [name, exact] : f64) {
    const double noise = kind == CaseKind::kMotion ? motion_noise(name) : 0;
    const double wide = 2 * std::max(relative_error(bf16.at(name), exact), 2 * noise) + kFloor;
    r[name] = reads_bf16 ? wide : std::min(wide, 4 * std::max(relative_error(f32.at(name), exact), noise) + kFloor);
  }
  return r;
}

KernelCheck compare(const StoredCase& c, std::string kernel, const NamedResults& results,
                    std::map<std::string, double> tolerance) {
  KernelCheck check{c.name, std::move(kernel), {}, std::move(tolerance), true};
  for (const auto& [name, result] : results) {
    const double error = relative_error(result, c.at(name));
    check.error[name] = error;
    check.ok = check.ok && error <= check.tolerance.at(name);
  }
  return check;
}

}  // namespace

template <class T>
double relative_error(const std::vector<double>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(b[i]);
    difference += (a[i] - x) * (a[i] - x);
    norm += x * x;
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

template double relative_error(const std::vector<double>&, const std::vector<float>&);
template double relative_error(const std::vector<double>&, const std::vector<double>&);

std::vector<KernelCheck> check_case(const StoredCase& c, Stream& stream, const std::string& only) {
  const NamedResults f64 = reference_results(c, Arithmetic::kF64), f32 = reference_results(c, Arithmetic::kF32);
  const NamedResults bf16 = reference_results(c, Arithmetic::kBf16);
  std::vector<KernelCheck> checks;
  std::map<std::string, double> floor;
  for (const auto& entry : f64) floor[entry.first] = kFloor;
  checks.push_back(compare(c, "reference", f64, floor));
  checks.push_back(compare(c, "reference_fp32", f32, tolerances(c.kind, f64, bf16, f32, true)));
  for (const TestedKernel& kernel : tested_kernels(c.kind))
    for (const Variant& v : variants_of(c.kind, kernel.name, kernel.takes_bf16, only)) {
      const ForcedVariant forced(v);
      checks.push_back(compare(c, v.name, kernel.run(c, v.dtype, stream), tolerances(c.kind, f64, bf16, f32, v.dtype == DType::kBF16)));
    }
  return checks;
}

std::vector<KernelCheck> check_kernels(const StoredCase& c, Stream& stream, const std::vector<TestedKernel>& kernels) {
  const NamedResults f64 = reference_results(c, Arithmetic::kF64), f32 = reference_results(c, Arithmetic::kF32);
  const NamedResults bf16 = reference_results(c, Arithmetic::kBf16);
  std::vector<KernelCheck> checks;
  for (const TestedKernel& k : kernels) {
    if (k.takes_f32)
      checks.push_back(compare(c, k.name, k.run(c, DType::kF32, stream), tolerances(c.kind, f64, bf16, f32, false)));
    if (k.takes_bf16)
      checks.push_back(compare(c, std::string(k.name) + "_bf16", k.run(c, DType::kBF16, stream), tolerances(c.kind, f64, bf16, f32, true)));
  }
  return checks;
}

std::string to_json_line(const KernelCheck& check) {
  const auto number = [](double x) { return std::isfinite(x) ? nlohmann::ordered_json(x) : nlohmann::ordered_json("inf"); };
  nlohmann::ordered_json j{{"case", check.case_name}, {"kernel", check.kernel}};
  for (const char* name : {"out", "dq", "dk", "dv", "doffsets", "lse"}) j[name] = nullptr;
  for (const auto& [name, error] : check.error) j[name] = number(error);
  j["ok"] = check.ok;
  for (const auto& [name, tolerance] : check.tolerance) j["tolerance"][name] = number(tolerance);
  return j.dump();
}

}  // namespace megaslide
