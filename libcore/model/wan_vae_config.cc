#include "model/wan_vae_config.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"

namespace megaslide {
namespace {
using nlohmann::json;

constexpr int64_t kMaxChannels = 16384;

// Of the published weights, for configs that leave them out (C.5, C.7).
constexpr std::array<float, 16> kMean16 = {-0.7571f, -0.7089f, -0.9113f, 0.1075f,  -0.1745f, 0.9653f,
                                           -0.1517f, 1.5508f,  0.4134f,  -0.0715f, 0.5517f,  -0.3632f,
                                           -0.1922f, -0.9497f, 0.2503f,  -0.2921f};
constexpr std::array<float, 16> kStd16 = {2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f, 2.6052f, 2.0743f,
                                          3.2687f, 2.1526f, 2.8652f, 1.5579f, 1.6382f, 1.1253f, 2.8251f, 1.9160f};
constexpr std::array<float, 48> kMean48 = {
    -0.2289f, -0.0052f, -0.1323f, -0.2339f, -0.2799f, 0.0174f,  0.1838f,  0.1557f,  -0.1382f, 0.0542f,
    0.2813f,  0.0891f,  0.1570f,  -0.0098f, 0.0375f,  -0.1825f, -0.2246f, -0.1207f, -0.0698f, 0.5109f,
    0.2665f,  -0.2108f, -0.2158f, 0.2502f,  -0.2055f, -0.0322f, 0.1109f,  0.1567f,  -0.0729f, 0.0899f,
    -0.2799f, -0.1230f, -0.0313f, -0.1649f, 0.0117f,  0.0723f,  -0.2839f, -0.2083f, -0.0520f, 0.3748f,
    0.0152f,  0.1957f,  0.1433f,  -0.2944f, 0.3573f,  -0.0548f, -0.1681f, -0.0667f};
constexpr std::array<float, 48> kStd48 = {
    0.4765f, 1.0364f, 0.4514f, 1.1677f, 0.5313f, 0.4990f, 0.4818f, 0.5013f, 0.8158f, 1.0344f, 0.5894f, 1.0901f,
    0.6885f, 0.6165f, 0.8454f, 0.4978f, 0.5759f, 0.3523f, 0.7135f, 0.6804f, 0.5833f, 1.4146f, 0.8986f, 0.5659f,
    0.7069f, 0.5338f, 0.4889f, 0.4917f, 0.4069f, 0.4999f, 0.6866f, 0.4093f, 0.5709f, 0.6065f, 0.6415f, 0.4944f,
    0.5726f, 1.2042f, 0.5458f, 1.6887f, 0.3971f, 1.0600f, 0.3943f, 0.5537f, 0.5444f, 0.4089f, 0.7468f, 0.7744f};

// Reads keys that may be absent or null and collects what is wrong.
class Reader {
 public:
  explicit Reader(const json& j) : json_(j) {
    if (!j.is_object()) problem("not an object");
  }
  void problem(std::string text) { problems_.push_back(std::move(text)); }

  void integer(const char* key, int64_t& value, int64_t low, int64_t high) {
    const json* j = find(key);
    if (!j) return;
    if (!in_range(*j, low, high))
      return problem(fmt::format("{} must be a whole number from {} to {}", key, low, high));
    value = j->get<int64_t>();
  }
  void boolean(const char* key, bool& value) {
    const json* j = find(key);
    if (!j) return;
    if (!j->is_boolean()) return problem(fmt::format("{} must be true or false", key));
    value = j->get<bool>();
  }
  void integers(const char* key, std::vector<int64_t>& values, size_t low, size_t high, int64_t most) {
    const json* j = find(key);
    if (!j) return;
    bool good = j->is_array() && j->size() >= low && j->size() <= high;
    if (good)
      for (const json& e : *j) good = good && in_range(e, 1, most);
    if (!good) return problem(fmt::format("{} must be {} to {} whole numbers from 1 to {}", key, low, high, most));
    values.clear();
    for (const json& e : *j) values.push_back(e.get<int64_t>());
  }
  void booleans(const char* key, std::vector<bool>& values, size_t count) {
    if (const json* j = find(key)) {
      bool good = j->is_array();
      if (good)
        for (const json& e : *j) good = good && e.is_boolean();
      if (!good) return problem(fmt::format("{} must be a list of true and false", key));
      values.clear();
      for (const json& e : *j) values.push_back(e.get<bool>());
    }
    if (values.size() != count)
      problem(fmt::format("{} has {} entries; with {} entries of dim_mult it has {}", key, values.size(), count + 1,
                          count));
  }
  void floats(const char* key, std::vector<float>& values, size_t count, bool positive) {
    const json* j = find(key);
    if (!j) return;
    bool good = j->is_array() && j->size() == count;
    if (good)
      for (const json& e : *j)
        good = good && e.is_number() && std::isfinite(e.get<float>()) && (!positive || e.get<float>() > 0);
    if (!good)
      return problem(fmt::format("{} must be {} {}numbers, as z_dim", key, count, positive ? "positive " : ""));
    values.clear();
    for (const json& e : *j) values.push_back(e.get<float>());
  }
  const json* find(const char* key) const {
    if (!json_.is_object()) return nullptr;
    const auto i = json_.find(key);
    return i == json_.end() || i->is_null() ? nullptr : &*i;
  }
  void finish(const std::string& source) const {
    if (problems_.empty()) return;
    std::string text = source + ": ";
    for (size_t i = 0; i < problems_.size(); ++i) text += (i ? "; " : "") + problems_[i];
    throw usage_error(text, "take the config.json that came with the weights");
  }
  bool clean() const { return problems_.empty(); }

 private:
  static bool in_range(const json& j, int64_t low, int64_t high) {
    if (j.is_number_unsigned() && j.get<uint64_t>() > static_cast<uint64_t>(high)) return false;
    return j.is_number_integer() && j.get<int64_t>() >= low && j.get<int64_t>() <= high;
  }
  const json& json_;
  std::vector<std::string> problems_;
};

template <size_t N>
void use_table(WanVaeConfig& c, const std::array<float, N>& mean, const std::array<float, N>& deviation) {
  if (c.z_dim != static_cast<int64_t>(N)) return;
  c.latents_mean.assign(mean.begin(), mean.end());
  c.latents_std.assign(deviation.begin(), deviation.end());
}

// What the widths must satisfy for the network to be defined.
void check_widths(Reader& r, const WanVaeConfig& c) {
  int64_t widest = 0;
  for (const int64_t m : c.dim_mult) widest = std::max(widest, m * std::max(c.base_dim, c.decoder_base_dim));
  if (widest > kMaxChannels) r.problem(fmt::format("{} channels; at most {} are supported", widest, kMaxChannels));
  const size_t stages = c.dim_mult.size();
  for (size_t i = 0; i < stages; ++i) {
    const int64_t out = c.base_dim * c.dim_mult[i], in = c.base_dim * c.dim_mult[i ? i - 1 : 0];
    const bool down = i + 1 < stages;
    if (c.residual && in * (down ? 4 : 1) * (down && c.temporal_downsample[i] ? 2 : 1) % out != 0)
      r.problem(fmt::format("stage {} averages {} channels into {}: not a whole number of each", i, in, out));
    const size_t j = stages - 1 - i;  // the decoder's stages run backwards
    const int64_t wide = c.decoder_base_dim * c.dim_mult[j],
                  before = c.decoder_base_dim * c.dim_mult[std::min(j + 1, stages - 1)];
    if (!c.residual && j > 0 && wide % 2 != 0) r.problem(fmt::format("{} channels cannot be halved", wide));
    if (c.residual && j > 0 && wide * 4 * (c.temporal_downsample[j - 1] ? 2 : 1) % before != 0)
      r.problem(fmt::format("stage {} of the decoder repeats {} channels into {}: not a whole number of each", i,
                            before, wide));
  }
}

}  // namespace

int64_t WanVaeConfig::spatial_stride() const { return patch << (dim_mult.size() - 1); }

int64_t WanVaeConfig::temporal_stride() const {
  int64_t r = 1;
  for (const bool t : temporal_downsample) r *= t ? 2 : 1;
  return r;
}

WanVaeConfig wan_vae_config(const json& j, const std::string& source) {
  WanVaeConfig c;
  Reader r(j);
  if (const json* kind = r.find("_class_name");
      kind && (!kind->is_string() || kind->get<std::string>() != "AutoencoderKLWan"))
    r.problem(fmt::format("_class_name is {}, not AutoencoderKLWan: this is no Wan autoencoder",
                          short_json(*kind)));
  r.integer("z_dim", c.z_dim, 1, 1024);
  r.integer("base_dim", c.base_dim, 1, 4096);
  c.decoder_base_dim = c.base_dim;
  r.integer("decoder_base_dim", c.decoder_base_dim, 1, 4096);
  r.integer("num_res_blocks", c.num_res_blocks, 1, 16);
  r.integers("dim_mult", c.dim_mult, 2, 6, 64);
  r.booleans("temperal_downsample", c.temporal_downsample, c.dim_mult.size() - 1);
  r.boolean("is_residual", c.residual);
  r.integer("patch_size", c.patch, 1, 8);
  int64_t in = c.pixel_channels(), out = in;
  r.integer("in_channels", in, 1, 4096);
  r.integer("out_channels", out, 1, 4096);
  if (in != c.pixel_channels() || out != c.pixel_channels())
    r.problem(fmt::format("in_channels {} and out_channels {}; with patch_size {} both are {}", in, out, c.patch,
                          c.pixel_channels()));
  if (const json* scales = r.find("attn_scales"); scales && !(scales->is_array() && scales->empty()))
    r.problem("attn_scales must be empty: attention outside the middle is not supported");
  use_table(c, kMean16, kStd16);
  use_table(c, kMean48, kStd48);
  r.floats("latents_mean", c.latents_mean, static_cast<size_t>(c.z_dim), false);
  r.floats("latents_std", c.latents_std, static_cast<size_t>(c.z_dim), true);
  if (r.clean() && (c.latents_mean.empty() || c.latents_std.empty()))
    r.problem(
        fmt::format("latents_mean and latents_std are missing, and no published autoencoder has z_dim {}", c.z_dim));
  if (r.clean()) check_widths(r, c);
  r.finish(source);
  return c;
}

WanVaeConfig read_wan_vae_config(const std::string& path) { return wan_vae_config(read_json(path, 1'000'000), path); }

}  // namespace megaslide
