// A stored attention case: NAME.safetensors with inputs and expected results, NAME.json with its parameters.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/dsa/dsa.h"
#include "kernels/dsa/motion.h"
#include "kernels/dsa/offset_net.h"
#include "kernels/dsa/pooled.h"

namespace megaslide {

enum class CaseKind { kDsa, kDense, kWindow, kPooled, kOffsetNet, kMotion };

using NamedTensors = std::map<std::string, std::vector<float>>;

struct StoredCase {
  std::string name;
  CaseKind kind = CaseKind::kDsa;
  int64_t batch = 1, heads = 1, head_dim = 1;
  std::array<int64_t, 3> grid{1, 1, 1};  // T, H, W
  float scale = 1;
  // dsa, and of motion the kernel, mode, groups and shots
  std::array<int64_t, 3> kernel{1, 1, 1};
  std::array<double, 3> reach{0, 0, 0};
  DsaOffsetMode mode = DsaOffsetMode::kFull;
  int64_t groups = 1;
  std::vector<int32_t> t_lo, t_hi;  // empty without shots
  // window
  std::array<int64_t, 3> window{1, 1, 1};
  int64_t layer = 0;
  // pooled
  std::array<int64_t, 3> tile{4, 4, 4};
  // offset_net, and of motion the channels
  int64_t channels = 0, outputs = 0;
  float eps = 1e-6f;
  NamedTensors tensors;  // everything but masks, fp32

  int64_t tokens() const { return grid[0] * grid[1] * grid[2]; }
  const std::vector<float>& at(const std::string& tensor) const;
  DsaShape dsa_shape() const;  // points into this object
  AttentionShape dense_shape() const;
  WindowShape window_shape() const;
  PooledShape pooled_shape() const;
  OffsetNetShape offset_net_shape() const;
};

// The parameters alone. Every tensor that they ask for has at most 2^40 elements. Throws Error naming `source`.
StoredCase parse_stored_case(std::string_view json_text, const std::string& source);

// Reads and validates both files. Throws Error naming the file and what is wrong with it.
StoredCase load_stored_case(const std::string& safetensors_path, const std::string& json_path);

// "dir/a.safetensors" → "dir/a.json"
std::string case_json_path(const std::string& safetensors_path);

}  // namespace megaslide
