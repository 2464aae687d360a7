// One parameter of a model or checkpoint file, whatever codec it is stored in, read piece by piece.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "io/safetensors.h"

namespace megaslide {

class ParameterReader {
 public:
  // `file` holds NAME and perhaps NAME.master or NAME.master_low, NAME.exp_avg, NAME.exp_avg_sq and their scales
  // (io/model_directory.h).
  // Throws Error for types that do not fit each other.
  ParameterReader(const SafetensorsFile& file, const std::string& name);

  const TensorView& stored() const { return weight_; }
  int64_t elements() const { return weight_.elements(); }
  bool has_moments() const { return first_.has_value(); }
  bool has_master() const { return master_.has_value() || low_.has_value(); }

  // Elements [first, first + n) into `out`.
  void master(float* out, int64_t first, int64_t n) const;       // fp32 master, else the stored weight widened
  void weight_bf16(uint16_t* out, int64_t first, int64_t n) const;  // stored bf16, else to_bf16() of the master
  void first_moment(float* out, int64_t first, int64_t n) const;
  void second_moment(float* out, int64_t first, int64_t n) const;
  void drop_pages() const;  // of everything read

 private:
  SafetensorsFile file_;
  std::string name_;
  TensorView weight_;
  std::optional<TensorView> master_, low_, first_, second_, first_scale_, second_scale_;  // scales: of I8 and U8
};

// Elements of a float type as fp32 from an unaligned view.
void read_f32(float* out, const TensorView& v, int64_t first, int64_t n);

}  // namespace megaslide
