#include "io/fp8_scales.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr const char* kScaleSuffixes[] = {".scale_weight", ".weight_scale", ".weight_scale_inv"};
constexpr const char* kIgnoredSuffixes[] = {".scale_input", ".input_scale", ".scale_output", ".output_scale", ".comfy_quant", "scaled_fp8"};

bool is_float(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

// One scale for all, or one a row.
bool fits(const TensorSource::Entry& scale, const TensorSource::Entry& weight) {
  const int64_t n = element_count(scale.shape);
  if (!is_float(scale.dtype)) return false;
  if (n == 1) return true;
  return !weight.shape.empty() && !scale.shape.empty() && n == weight.shape[0] && scale.shape[0] == n;
}

std::string find_scale(const TensorSource& source, const std::string& name) {
  if (name.ends_with(".weight"))
    for (const char* suffix : kScaleSuffixes) {
      const std::string scale = name.substr(0, name.size() - std::string(".weight").size()) + suffix;
      if (source.find(scale)) return scale;
    }
  return source.find(name + "_scale") ? name + "_scale" : std::string();
}

}  // namespace

bool is_fp8(DType t) {
  return t == DType::kF8_E4M3 || t == DType::kF8_E5M2 || t == DType::kF8_E4M3FNUZ || t == DType::kF8_E5M2FNUZ || t == DType::kF8_E8M0;
}

Fp8Scales find_fp8_scales(const TensorSource& source) {
  Fp8Scales out;
  for (const auto& [name, entry] : source.tensors())
    for (const char* suffix : kIgnoredSuffixes)
      if (name.ends_with(suffix)) out.beside.insert(name);
  for (const auto& [name, entry] : source.tensors()) {
    if (!is_fp8(entry.dtype) || out.beside.count(name)) continue;
    const std::string shown = quote_for_message(name);
    const std::string scale = find_scale(source, name);
    if (!scale.empty()) out.beside.insert(scale);
    if (entry.dtype != DType::kF8_E4M3 && entry.dtype != DType::kF8_E5M2) {
      out.problems.push_back(fmt::format("{} is {}, which is not read", shown, dtype_name(entry.dtype)));
    } else if (scale.empty()) {
      out.problems.push_back(fmt::format("{} is {} without a scale", shown, dtype_name(entry.dtype)));
    } else if (!fits(*source.find(scale), entry)) {
      out.problems.push_back(fmt::format("{} is {} {}, its scale {} {}: one value, or one a row, as F32 is expected", shown, dtype_name(entry.dtype),
                                         to_string(entry.shape), dtype_name(source.find(scale)->dtype), to_string(source.find(scale)->shape)));
    } else {
      out.scale_of[name] = scale;
    }
  }
  // The scale of a tensor that is no FP8 (any more) would change its meaning.
  for (const auto& [name, entry] : source.tensors())
    for (const char* suffix : kScaleSuffixes)
      if (name.ends_with(suffix) && !out.beside.count(name) && is_float(entry.dtype))
        if (const auto* weight = source.find(name.substr(0, name.size() - std::string(suffix).size()) + ".weight"); weight && !is_fp8(weight->dtype))
          out.problems.push_back(fmt::format("{} is a scale, but its weight is {}", quote_for_message(name), dtype_name(weight->dtype)));
  return out;
}

void check_fp8(const Fp8Scales& scales, const std::string& path, bool allowed) {
  if (!scales.problems.empty()) {
    std::string text;
    for (size_t i = 0; i < scales.problems.size() && i < 10; ++i) text += "\n  " + scales.problems[i];
    if (scales.problems.size() > 10) text += fmt::format("\n  … and {} more", scales.problems.size() - 10);
    throw Error(fmt::format("{}: FP8 weights that cannot be read:{}", path, text), "give the bf16 or fp32 checkpoint, or an FP8 one that holds its scales");
  }
  if (scales.scale_of.empty()) return;
  if (!allowed)
    throw Error(fmt::format("{}: fp8 weights with scales ({} tensors)", path, scales.scale_of.size()),
                "give the bf16 or fp32 checkpoint, or allow de-quantising with --dtype bf16 or --dtype fp32");
  log_warning("{}: {} tensors are de-quantised from FP8: training starts from quantised weights, which have lost most of their digits", path, scales.scale_of.size());
}

}  // namespace megaslide
