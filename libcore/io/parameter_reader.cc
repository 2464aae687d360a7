#include "io/parameter_reader.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/state_hash.h"

namespace megaslide {
namespace {

bool is_float(DType t) {
  return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16 || t == DType::kF64 || t == DType::kF8_E4M3 || t == DType::kF8_E5M2;
}

}  // namespace

void read_f32(float* out, const TensorView& v, int64_t first, int64_t n) {
  convert_to_f32(out, v.data + first * dtype_bytes(v.dtype), v.dtype, n);
}

ParameterReader::ParameterReader(const SafetensorsFile& file, const std::string& name)
    : file_(file), name_(name), weight_(file.view(name)) {
  const auto optional = [&](const char* suffix, std::initializer_list<DType> types) -> std::optional<TensorView> {
    const TensorInfo* info = file_.find(name_ + suffix);
    if (!info) return std::nullopt;
    if (std::find(types.begin(), types.end(), info->dtype) == types.end() || info->shape != weight_.shape)
      throw Error(fmt::format("{}: {}{} is {} {}, which does not fit {} {}", file_.path(), name_, suffix, dtype_name(info->dtype),
                              to_string(info->shape), dtype_name(weight_.dtype), to_string(weight_.shape)),
                  "the file was not written by this version of MegaSlide");
    return file_.view(*info);
  };
  if (!is_float(weight_.dtype)) throw Error(fmt::format("{}: {} is {}, no float type", file_.path(), name_, dtype_name(weight_.dtype)));
  master_ = optional(".master", {DType::kF32});
  low_ = optional(".master_low", {DType::kI16});
  if (low_ && weight_.dtype != DType::kBF16)
    throw Error(fmt::format("{}: {}.master_low stands beside a weight of type {}, not BF16", file_.path(), name_, dtype_name(weight_.dtype)));
  first_ = optional(".exp_avg", {DType::kF32, DType::kBF16});
  second_ = optional(".exp_avg_sq", {DType::kF32, DType::kBF16});
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

void ParameterReader::first_moment(float* out, int64_t first, int64_t n) const { read_f32(out, *first_, first, n); }
void ParameterReader::second_moment(float* out, int64_t first, int64_t n) const { read_f32(out, *second_, first, n); }

void ParameterReader::drop_pages() const {
  for (const char* suffix : {"", ".master", ".master_low", ".exp_avg", ".exp_avg_sq"})
    if (const TensorInfo* info = file_.find(name_ + suffix)) file_.drop_pages(*info);
}

}  // namespace megaslide
