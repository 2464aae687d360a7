#include "io/parameter_reader.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/state_hash.h"
#include "tensor/moment_levels.h"

namespace megaslide {
namespace {

bool is_float(DType t) {
  return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16 || t == DType::kF64 || t == DType::kF8_E4M3 || t == DType::kF8_E5M2;
}

float scale_of(const TensorView& scales, int64_t element) {
  float s;
  std::memcpy(&s, scales.data + 4 * (element / kMomentBlock), 4);
  return s;
}

}  // namespace

void read_f32(float* out, const TensorView& v, int64_t first, int64_t n) {
  convert_to_f32(out, v.data + first * dtype_bytes(v.dtype), v.dtype, n);
}

ParameterReader::ParameterReader(const SafetensorsFile& file, const std::string& name)
    : file_(file), name_(name), weight_(file.view(name)) {
  const auto optional_of = [&](const char* suffix, std::initializer_list<DType> types, const Shape& shape) -> std::optional<TensorView> {
    const TensorInfo* info = file_.find(name_ + suffix);
    if (!info) return std::nullopt;
    if (std::find(types.begin(), types.end(), info->dtype) == types.end() || info->shape != shape)
      throw Error(fmt::format("{}: {}{} is {} {}, which does not fit {} {}", file_.path(), name_, suffix, dtype_name(info->dtype),
                              to_string(info->shape), dtype_name(weight_.dtype), to_string(weight_.shape)),
                  "the file was not written by this version of MegaSlide");
    return file_.view(*info);
  };
  const auto optional = [&](const char* suffix, std::initializer_list<DType> types) { return optional_of(suffix, types, weight_.shape); };
  if (!is_float(weight_.dtype)) throw Error(fmt::format("{}: {} is {}, no float type", file_.path(), name_, dtype_name(weight_.dtype)));
  master_ = optional(".master", {DType::kF32});
  low_ = optional(".master_low", {DType::kI16});
  if (low_ && weight_.dtype != DType::kBF16)
    throw Error(fmt::format("{}: {}.master_low stands beside a weight of type {}, not BF16", file_.path(), name_, dtype_name(weight_.dtype)));
  first_ = optional(".exp_avg", {DType::kF32, DType::kBF16, DType::kI8});
  second_ = optional(".exp_avg_sq", {DType::kF32, DType::kBF16, DType::kU8});
  const auto scale = [&](const std::optional<TensorView>& levels, DType type, const char* suffix) {
    std::optional<TensorView> s = optional_of(suffix, {DType::kF32}, {moment_blocks(elements())});
    if (s.has_value() != (levels && levels->dtype == type))
      throw Error(fmt::format("{}: {}{} {}", file_.path(), name_, suffix, s ? "scales nothing" : "is missing"), "the checkpoint is incomplete");
    return s;
  };
  first_scale_ = scale(first_, DType::kI8, ".exp_avg_scale");
  second_scale_ = scale(second_, DType::kU8, ".exp_avg_sq_scale");
  if (first_.has_value() != second_.has_value())
    throw Error(fmt::format("{}: {} has one of its two moments only", file_.path(), name_), "the checkpoint is incomplete");
}

void ParameterReader::master(float* out, int64_t first, int64_t n) const {
  if (!low_) return read_f32(out, master_ ? *master_ : weight_, first, n);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t w;
    int16_t low;
    std::memcpy(&w, weight_.data + 2 * (first + i), 2);
    std::memcpy(&low, low_->data + 2 * (first + i), 2);
    out[i] = std::bit_cast<float>(split_master_bits(w, low));
  }
}

void ParameterReader::weight_bf16(uint16_t* out, int64_t first, int64_t n) const {
  if (weight_.dtype == DType::kBF16) {
    if (n) std::memcpy(out, weight_.data + 2 * first, static_cast<size_t>(2 * n));
    return;
  }
  float piece[1024];
  for (int64_t at = 0; at < n; at += 1024) {
    const int64_t count = std::min<int64_t>(1024, n - at);
    master(piece, first + at, count);
    convert_from_f32(out + at, DType::kBF16, piece, count);
  }
}

void ParameterReader::first_moment(float* out, int64_t first, int64_t n) const {
  if (!first_scale_) return read_f32(out, *first_, first, n);
  for (int64_t i = 0; i < n; ++i) out[i] = m_value(static_cast<int8_t>(first_->data[first + i]), scale_of(*first_scale_, first + i));
}

void ParameterReader::second_moment(float* out, int64_t first, int64_t n) const {
  if (!second_scale_) return read_f32(out, *second_, first, n);
  for (int64_t i = 0; i < n; ++i) out[i] = v_value(static_cast<uint8_t>(second_->data[first + i]), scale_of(*second_scale_, first + i));
}

void ParameterReader::drop_pages() const {
  for (const char* suffix : {"", ".master", ".master_low", ".exp_avg", ".exp_avg_sq", ".exp_avg_scale", ".exp_avg_sq_scale"})
    if (const TensorInfo* info = file_.find(name_ + suffix)) file_.drop_pages(*info);
}

}  // namespace megaslide
