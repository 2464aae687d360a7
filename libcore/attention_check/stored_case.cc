#include "attention_check/stored_case.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/utf8.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace megaslide {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxCaseBytes = 1 << 24;
constexpr int64_t kLargest = int64_t{1} << 31;       // of any size in a case
constexpr int64_t kMostElements = int64_t{1} << 40;  // of any tensor

[[noreturn]] void bad(const std::string& what) { throw Error(what, "use a case in the format of golden/dsa"); }

int64_t integer(const Json& j, const char* key, int64_t low) {
  if (!j.contains(key) || !j[key].is_number_integer()) bad(fmt::format("\"{}\" is missing or no integer", key));
  const int64_t v = j[key].get<int64_t>();
  if (v < low || v > kLargest) bad(fmt::format("\"{}\" is {}: outside {} … {}", key, v, low, kLargest));
  return v;
}

// The elements of a tensor, or of a window; throws where there are too many.
int64_t checked_elements(std::initializer_list<int64_t> extents) {
  int64_t n = 1;
  for (const int64_t e : extents) {
    if (e > kMostElements / n) bad("sizes that make a tensor of more than 2^40 elements");
    n *= e;
  }
  return n;
}

double number(const Json& j, const char* key) {
  if (!j.contains(key) || !j[key].is_number()) bad(fmt::format("\"{}\" is missing or no number", key));
  return j[key].get<double>();
}

std::array<int64_t, 3> triple(const Json& j, const char* key) {
  if (!j.contains(key) || !j[key].is_array() || j[key].size() != 3) bad(fmt::format("\"{}\" is no array of 3", key));
  std::array<int64_t, 3> r{};
  for (size_t i = 0; i < 3; ++i) {
    if (!j[key][i].is_number_integer()) bad(fmt::format("\"{}\" holds something else than integers", key));
    r[i] = j[key][i].get<int64_t>();
    if (r[i] < 1 || r[i] > kLargest) bad(fmt::format("\"{}\" holds {}", key, r[i]));
  }
  return r;
}

std::vector<int32_t> table(const Json& j, const char* key, int64_t frames) {
  if (!j.contains(key) || j[key].is_null()) return {};
  if (!j[key].is_array() || static_cast<int64_t>(j[key].size()) != frames)
    bad(fmt::format("\"{}\" has not one entry a frame", key));
  std::vector<int32_t> r;
  for (const Json& x : j[key]) {
    if (!x.is_number_integer() || x.get<int64_t>() < 0 || x.get<int64_t>() >= frames)
      bad(fmt::format("\"{}\" holds a frame outside 0 … {}", key, frames - 1));
    r.push_back(x.get<int32_t>());
  }
  return r;
}

// What cases of the operator and of its motion term share: whose slots, and which frames they may lie in.
void read_slots(const Json& j, StoredCase& c) {
  c.kernel = triple(j, "kernel_thw");
  const std::string mode = j.value("mode", Json()).is_string() ? j["mode"].get<std::string>() : "";
  if (mode == "full") c.mode = DsaOffsetMode::kFull;
  else if (mode == "slice") c.mode = DsaOffsetMode::kSlice;
  else if (mode == "rigid") c.mode = DsaOffsetMode::kRigid;
  else bad("\"mode\" is none of full, slice, rigid");
  c.groups = integer(j, "groups", 1);
  checked_elements({c.batch, c.tokens(), c.groups, 3, c.kernel[0], c.kernel[1], c.kernel[2]});
  c.t_lo = table(j, "t_lo", c.grid[0]);
  c.t_hi = table(j, "t_hi", c.grid[0]);
  if (c.t_lo.size() != c.t_hi.size()) bad("\"t_lo\" and \"t_hi\" come together or not at all");
  for (size_t t = 0; t < c.t_lo.size(); ++t)
    if (c.t_lo[t] > static_cast<int32_t>(t) || c.t_hi[t] < static_cast<int32_t>(t))
      bad(fmt::format("frame {} is outside its shot {} … {}", t, c.t_lo[t], c.t_hi[t]));
}

void read_dsa(const Json& j, StoredCase& c) {
  read_slots(j, c);
  if (c.groups > c.heads) bad(fmt::format("{} groups of {} heads", c.groups, c.heads));
  if (!j.contains("reach_thw") || !j["reach_thw"].is_array() || j["reach_thw"].size() != 3)
    bad("\"reach_thw\" is no array of 3");
  for (size_t i = 0; i < 3; ++i) {
    if (!j["reach_thw"][i].is_number()) bad("\"reach_thw\" holds something else than numbers");
    c.reach[i] = j["reach_thw"][i].get<double>();
    if (!(c.reach[i] >= 0) || !std::isfinite(c.reach[i])) bad(fmt::format("\"reach_thw\" holds {}", c.reach[i]));
  }
}

void read_motion(const Json& j, StoredCase& c) {
  read_slots(j, c);
  c.channels = integer(j, "channels", 1);
  if (c.mode == DsaOffsetMode::kRigid) bad("the motion term is defined for the modes full and slice");
  if (integer(j, "proj_channels", 1) != kMotionChannels || integer(j, "search", 0) != kMotionSearch ||
      number(j, "beta_base") != static_cast<double>(kMotionBetaBase) || static_cast<float>(number(j, "unit_eps")) != kMotionUnitEps)
    bad("the motion term has 16 channels, a search of 4 tokens, a beta_base of 20 and a unit_eps of 1e-12");
}

void read_parameters(const Json& j, StoredCase& c) {
  const std::string kind = j.value("kind", Json()).is_string() ? j["kind"].get<std::string>() : "";
  c.batch = integer(j, "batch", 1);
  c.grid = triple(j, "grid_thw");
  const int64_t rows = checked_elements({c.batch, c.grid[0], c.grid[1], c.grid[2]});
  if (kind == "offset_net") {
    c.kind = CaseKind::kOffsetNet;
    c.channels = integer(j, "channels", 1);
    checked_elements({rows, c.channels});
    c.eps = static_cast<float>(number(j, "norm_eps"));
    return;
  }
  if (kind == "motion") {
    c.kind = CaseKind::kMotion;
    read_motion(j, c);
    checked_elements({rows, c.channels});
    return;
  }
  c.heads = integer(j, "heads", 1);
  c.head_dim = integer(j, "head_dim", 1);
  checked_elements({rows, c.heads, c.head_dim});
  c.scale = static_cast<float>(number(j, "scale"));
  if (kind == "dsa") {
    c.kind = CaseKind::kDsa;
    read_dsa(j, c);
  } else if (kind == "dense") {
    c.kind = CaseKind::kDense;
  } else if (kind == "window") {
    c.kind = CaseKind::kWindow;
    c.window = triple(j, "window_thw");
    checked_elements({c.window[0], c.window[1], c.window[2]});
    c.layer = integer(j, "layer", 0);
  } else if (kind == "pooled") {
    c.kind = CaseKind::kPooled;
    c.tile = triple(j, "tile_thw");
    checked_elements({c.tile[0], c.tile[1], c.tile[2]});
  } else {
    bad(fmt::format("no kernel runs cases of kind {}", quote_for_message(kind)));
  }
}

// A path that is no case's says which argument it is.
template <class F>
auto of_second_argument(F&& read) {
  try {
    return read();
  } catch (const Error& e) {
    throw Error(e.message(), "the second argument is the case's JSON file, in the format of golden/dsa");
  }
}

// The tensors that a case of this kind must hold, with their shapes.
std::map<std::string, Shape> expected_tensors(const StoredCase& c) {
  const int64_t n = c.tokens(), m = c.kind == CaseKind::kPooled ? c.pooled_shape().tiles() : n;
  std::map<std::string, Shape> shapes;
  if (c.kind == CaseKind::kOffsetNet) {
    const Shape x{c.batch, n, c.channels}, one{c.channels}, conv{c.channels, 1, 3, 3, 3};
    for (const char* t : {"x", "dx", "conv_out", "gelu_out"}) shapes[t] = x;
    for (const char* t : {"conv_bias", "norm_weight", "norm_bias"}) shapes[t] = shapes[std::string("d") + t] = one;
    shapes["conv_weight"] = shapes["dconv_weight"] = conv;
    shapes["linear_weight"] = shapes["dlinear_weight"] = {c.outputs, c.channels};
    shapes["linear_bias"] = shapes["dlinear_bias"] = {c.outputs};
    return shapes;
  }
  if (c.kind == CaseKind::kMotion) {
    for (const char* t : {"x", "dx"}) shapes[t] = {c.batch, n, c.channels};
    shapes["motion_proj_weight"] = shapes["dmotion_proj_weight"] = {kMotionChannels, c.channels};
    shapes["s"] = shapes["ds"] = {1};
    shapes["gain"] = shapes["dgain"] = {c.groups};
    shapes["m"] = {c.batch, n, c.kernel[0], 2};
    return shapes;
  }
  const Shape rows{c.batch, n, c.heads, c.head_dim};
  for (const char* t : {"q", "k", "v", "dout", "out", "dq", "dk", "dv"}) shapes[t] = rows;
  shapes["lse"] = {c.batch, m, c.heads};
  if (c.kind == CaseKind::kPooled) {
    shapes["gate"] = shapes["dgate"] = {c.heads};
    for (const char* t : {"q_mean", "k_mean", "v_mean"}) shapes[t] = {c.batch, m, c.heads, c.head_dim};
  }
  return shapes;
}

void read_tensors(const SafetensorsFile& file, StoredCase& c) {
  if (c.kind == CaseKind::kOffsetNet) {
    const TensorInfo* w = file.find("linear_weight");
    if (w == nullptr || w->shape.size() != 2) bad("linear_weight is missing or no matrix");
    c.outputs = w->shape[0];
    checked_elements({c.batch, c.tokens(), c.outputs});
  }
  for (const auto& [name, shape] : expected_tensors(c)) {
    const TensorInfo* info = file.find(name);
    if (info == nullptr) bad(fmt::format("tensor {} is missing", name));
    if (info->shape != shape) bad(fmt::format("tensor {} is {}, its parameters say {}", name, to_string(info->shape), to_string(shape)));
  }
  const int64_t rows = c.batch * c.tokens();
  for (const TensorInfo& info : file.tensors()) {
    if (info.dtype != DType::kF32 && info.dtype != DType::kBF16) continue;
    const HostTensor t = read_f32(file, info.name);
    c.tensors[info.name].assign(t.f32(), t.f32() + t.elements());
  }
  int64_t per_token = -1;
  std::vector<std::string> names{"offsets", "doffsets"};
  if (c.kind == CaseKind::kMotion) names.insert(names.end(), {"net_offsets", "dnet_offsets"});
  if (c.kind == CaseKind::kDsa || c.kind == CaseKind::kMotion) per_token = dsa_offset_count(c.dsa_shape());
  if (c.kind == CaseKind::kOffsetNet) per_token = c.outputs;
  if (per_token < 0) return;
  for (const std::string& name : names)
    if (static_cast<int64_t>(c.at(name).size()) != rows * per_token)
      bad(fmt::format("tensor {} has {} elements instead of {}", name, c.at(name).size(), rows * per_token));
}

}  // namespace

const std::vector<float>& StoredCase::at(const std::string& tensor) const {
  const auto it = tensors.find(tensor);
  if (it == tensors.end()) bad(fmt::format("tensor {} is missing", tensor));
  return it->second;
}

DsaShape StoredCase::dsa_shape() const {
  DsaShape s;
  s.batch = batch, s.frames = grid[0], s.height = grid[1], s.width = grid[2];
  s.heads = heads, s.head_dim = head_dim, s.scale = scale, s.mode = mode, s.groups = groups;
  for (size_t a = 0; a < 3; ++a) s.kernel[a] = kernel[a], s.reach[a] = static_cast<float>(reach[a]);
  if (!t_lo.empty()) s.t_lo = t_lo.data(), s.t_hi = t_hi.data();
  return s;
}
AttentionShape StoredCase::dense_shape() const { return {batch, tokens(), tokens(), heads, head_dim, scale}; }
WindowShape StoredCase::window_shape() const {
  return {batch, grid[0], grid[1], grid[2], heads, head_dim, scale, {window[0], window[1], window[2]}, layer};
}
PooledShape StoredCase::pooled_shape() const {
  return {batch, grid[0], grid[1], grid[2], heads, head_dim, scale, {tile[0], tile[1], tile[2]}, DType::kF32};
}
OffsetNetShape StoredCase::offset_net_shape() const {
  OffsetNetShape s;
  s.batch = batch, s.frames = grid[0], s.height = grid[1], s.width = grid[2], s.channels = channels, s.eps = eps;
  return s;
}

StoredCase parse_stored_case(std::string_view json_text, const std::string& source) {
  StoredCase c;
  const Json j = of_second_argument([&] { return parse_json(json_text, source); });
  try {
    if (!j.is_object()) bad("no JSON object");
    const auto name = j.find("case");
    c.name = name != j.end() && name->is_string() ? name->get<std::string>() : source.substr(source.find_last_of('/') + 1);
    read_parameters(j, c);
  } catch (Error& e) {
    throw e.add_context(source);
  }
  return c;
}

StoredCase load_stored_case(const std::string& safetensors_path, const std::string& json_path) {
  StoredCase c = parse_stored_case(of_second_argument([&] { return read_file(json_path, kMaxCaseBytes); }), json_path);
  const SafetensorsFile file = SafetensorsFile::open(safetensors_path);
  try {
    read_tensors(file, c);
  } catch (Error& e) {
    throw e.add_context(safetensors_path);
  }
  return c;
}

std::string case_json_path(const std::string& path) {
  const std::string suffix = ".safetensors";
  if (path.size() > suffix.size() && path.ends_with(suffix)) return path.substr(0, path.size() - suffix.size()) + ".json";
  return path + ".json";
}

}  // namespace megaslide
