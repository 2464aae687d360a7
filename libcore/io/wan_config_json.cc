#include "io/wan_config_json.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"

namespace megaslide {
namespace {
using nlohmann::json;

constexpr int64_t kMostOfAnything = int64_t{1} << 24;

class ConfigJson {
 public:
  ConfigJson(json from, const std::string& path) : from_(std::move(from)), path_(path) {
    if (!from_.is_object()) throw Error(path + ": expected an object", "use the config.json that came with the weights");
  }

  bool has(const char* key) const { return from_.contains(key); }

  std::optional<int64_t> size(const char* key) const {
    const auto it = from_.find(key);
    if (it == from_.end() || it->is_null()) return std::nullopt;
    if (!it->is_number_integer()) throw Error(fmt::format("{}: {} must be an integer, found {}", path_, key, short_json(*it)));
    const bool usable = it->is_number_unsigned() && it->get<uint64_t>() >= 1 && it->get<uint64_t>() <= uint64_t{kMostOfAnything};
    if (!usable) throw Error(fmt::format("{}: {} is {}, unusable", path_, key, short_json(*it)));
    return it->get<int64_t>();
  }

  void take(const char* key, int64_t& value) const { value = size(key).value_or(value); }

  void agree(const char* key, int64_t have) const {
    const auto value = size(key);
    if (value && *value != have) disagree(fmt::format("{} is {}, but the weights have {}", key, *value, have));
  }

  [[noreturn]] void disagree(const std::string& what) const { throw Error(path_ + ": " + what, "config.json and weights do not belong together"); }

  void take_number(const char* key, double& value) const {
    const auto it = from_.find(key);
    if (it == from_.end() || it->is_null()) return;
    if (!it->is_number()) throw Error(fmt::format("{}: {} must be a number, found {}", path_, key, short_json(*it)));
    value = it->get<double>();
  }

 private:
  json from_;
  const std::string& path_;
};

}  // namespace

void merge_wan_config_json(std::string_view text, const std::string& path, ModelConfig& c) {
  const ConfigJson file(parse_json(text, path), path);
  const bool diffusers = file.has("num_attention_heads");
  file.agree("num_layers", c.layers);
  file.take("ffn_dim", c.ffn_dim);
  file.take(diffusers ? "in_channels" : "in_dim", c.in_channels);
  file.take(diffusers ? "out_channels" : "out_dim", c.out_channels);
  file.take("text_dim", c.text_dim);
  file.take("freq_dim", c.freq_dim);
  if (diffusers) {
    file.take("num_attention_heads", c.heads);
    if (const auto width = file.size("attention_head_dim"); width && c.heads > 0 && *width * c.heads != c.dim)
      file.disagree(fmt::format("{} heads of {} do not make the weights' width {}", c.heads, *width, c.dim));
  } else if (file.has("num_heads")) {
    file.take("num_heads", c.heads);
    file.agree("dim", c.dim);
  }
  file.take("rope_max_seq_len", c.rope_max_seq_len);
  file.take("text_len", c.text_len);
  file.take_number("eps", c.eps);
}

}  // namespace megaslide
