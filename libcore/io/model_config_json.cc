#include "io/model_config_json.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"

namespace megaslide {
namespace {
using nlohmann::json;

constexpr AttentionKind kAttentionKinds[] = {AttentionKind::kDense, AttentionKind::kDenseMaterialised, AttentionKind::kWindow,
                                             AttentionKind::kDsa};
constexpr DsaMode kDsaModes[] = {DsaMode::kFull, DsaMode::kSlice, DsaMode::kRigid};
constexpr DsaOffsets kDsaOffsets[] = {DsaOffsets::kNet, DsaOffsets::kNetMotion, DsaOffsets::kNetGiven};
constexpr CodecKind kCodecKinds[] = {CodecKind::kNone, CodecKind::kHaar, CodecKind::kWan21Vae, CodecKind::kWan22Vae};
constexpr TextEncoderKind kTextEncoderKinds[] = {TextEncoderKind::kNone, TextEncoderKind::kHashedNgram, TextEncoderKind::kUmt5};

// Reads the name of one of `kinds`.
template <class Kind, size_t N>
void read_kind(JsonFields& f, const char* key, Kind& value, const Kind (&kinds)[N], const char* (*name)(Kind)) {
  std::vector<std::string> names;
  for (const Kind k : kinds) names.emplace_back(name(k));
  size_t index = N;
  f.read_choice(key, index, names);
  if (index < N) value = kinds[index];
}

void merge(JsonFields& into, JsonFields& from, const char* prefix) {
  for (const std::string& p : from.problems()) into.problem(std::string(prefix) + p);
}

template <class T>
void read_present(JsonFields& f, const char* key, std::optional<T>& value) {
  if (f.find(key)) f.read(key, value.emplace());
}

void read_window(JsonFields& f, DsaHeadWindow& w) {
  if (f.find("layers")) {
    for (const json& e : f.array("layers")) {
      const json wrapped = {{"layers", e}};
      JsonFields one(wrapped, "");
      one.read("layers", w.layers.emplace_back());
      merge(f, one, "");
    }
  }
  read_present(f, "heads", w.heads);
  read_present(f, "kernel", w.kernel);
  read_present(f, "reach", w.reach);
  if (f.find("mode")) read_kind(f, "mode", w.mode.emplace(), kDsaModes, dsa_mode_name);
  read_present(f, "groups", w.groups);
}

json window_to_json(const DsaHeadWindow& w) {
  json j = json::object();
  if (!w.layers.empty()) j["layers"] = w.layers;
  if (w.heads) j["heads"] = *w.heads;
  if (w.kernel) j["kernel"] = *w.kernel;
  if (w.reach) j["reach"] = *w.reach;
  if (w.mode) j["mode"] = dsa_mode_name(*w.mode);
  if (w.groups) j["groups"] = *w.groups;
  return j;
}

void read_attention(JsonFields& parent, AttentionConfig& a) {
  JsonFields f(parent.object("attention"), "");
  read_kind(f, "kind", a.kind, kAttentionKinds, attention_kind_name);
  f.read("window", a.window);
  JsonFields d(f.object("dsa"), "");
  d.read("kernel", a.dsa.kernel);
  d.read("reach", a.dsa.reach);
  d.read("groups", a.dsa.groups);
  read_kind(d, "mode", a.dsa.mode, kDsaModes, dsa_mode_name);
  // A manifest without these keys is of a model without these parameters. Where they are added to it, nothing may change
  // at first: its motion_share is 0.
  DsaOffsets offsets = DsaOffsets::kNet;
  a.dsa.motion_share = 0;
  if (d.find("offsets")) read_kind(d, "offsets", offsets, kDsaOffsets, dsa_offsets_name);
  if (d.find("motion_share")) d.read("motion_share", a.dsa.motion_share);
  if (d.find("pooled")) d.read("pooled", a.dsa.pooled);
  a.dsa.offsets = offsets;
  if (d.find("windows")) {
    for (const json& e : d.array("windows")) {
      JsonFields w(e, "");
      read_window(w, a.dsa.windows.emplace_back());
      merge(d, w, "windows: ");
    }
  }
  merge(f, d, "dsa.");
  if (f.find("per_layer")) {
    for (const json& e : f.array("per_layer")) {
      const json wrapped = {{"per_layer", e}};
      JsonFields one(wrapped, "");
      AttentionKind kind = a.kind;
      read_kind(one, "per_layer", kind, kAttentionKinds, attention_kind_name);
      merge(f, one, "");
      a.per_layer.push_back(kind);
    }
  }
  merge(parent, f, "attention.");
}

bool has_motion_term(const AttentionConfig& a) {
  const auto& layers = a.per_layer;
  const bool deformable = layers.empty() ? a.kind == AttentionKind::kDsa : std::find(layers.begin(), layers.end(), AttentionKind::kDsa) != layers.end();
  return deformable && a.dsa.motion();
}

}  // namespace

json model_config_to_json(const ModelConfig& c) {
  const AttentionConfig& a = c.attention;
  json attention = {{"kind", attention_kind_name(a.kind)},
                    {"window", a.window},
                    {"dsa", {{"kernel", a.dsa.kernel}, {"reach", a.dsa.reach}, {"mode", dsa_mode_name(a.dsa.mode)}, {"groups", a.dsa.groups},
                             {"offsets", dsa_offsets_name(a.dsa.offsets.value_or(a.dsa.motion() ? DsaOffsets::kNetMotion : DsaOffsets::kNet))},
                             {"pooled", a.dsa.pooled}}}};
  if (has_motion_term(a)) attention["dsa"]["motion_share"] = a.dsa.motion_share;
  for (const DsaHeadWindow& w : a.dsa.windows) attention["dsa"]["windows"].push_back(window_to_json(w));
  if (!a.per_layer.empty()) {
    attention["per_layer"] = json::array();
    for (const AttentionKind k : a.per_layer) attention["per_layer"].push_back(attention_kind_name(k));
  }
  return {{"name", c.name}, {"dim", c.dim}, {"heads", c.heads}, {"ffn_dim", c.ffn_dim}, {"layers", c.layers},
          {"in_channels", c.in_channels}, {"out_channels", c.out_channels}, {"text_dim", c.text_dim}, {"text_len", c.text_len},
          {"freq_dim", c.freq_dim}, {"eps", c.eps}, {"rope_max_seq_len", c.rope_max_seq_len}, {"attention", attention},
          {"codec", codec_kind_name(c.codec)}, {"text_encoder", text_encoder_kind_name(c.text_encoder)},
          {"num_frames", c.num_frames}, {"height", c.height}, {"width", c.width}, {"fps", c.fps}, {"steps", c.steps},
          {"flow_shift", c.flow_shift}, {"guidance_scale", c.guidance_scale}, {"boundary", c.boundary},
          {"guidance_scale_2", c.guidance_scale_2}};
}

ModelConfig model_config_from_json(const json& from, const std::string& source) {
  ModelConfig c;
  JsonFields f(from, source);
  f.read("name", c.name);
  f.read("dim", c.dim);
  f.read("heads", c.heads);
  f.read("ffn_dim", c.ffn_dim);
  f.read("layers", c.layers);
  f.read("in_channels", c.in_channels);
  f.read("out_channels", c.out_channels);
  f.read("text_dim", c.text_dim);
  f.read("text_len", c.text_len);
  f.read("freq_dim", c.freq_dim);
  f.read("eps", c.eps);
  f.read("rope_max_seq_len", c.rope_max_seq_len);
  read_attention(f, c.attention);
  read_kind(f, "codec", c.codec, kCodecKinds, codec_kind_name);
  read_kind(f, "text_encoder", c.text_encoder, kTextEncoderKinds, text_encoder_kind_name);
  f.read("num_frames", c.num_frames);
  f.read("height", c.height);
  f.read("width", c.width);
  f.read("fps", c.fps);
  f.read("steps", c.steps);
  f.read("flow_shift", c.flow_shift);
  f.read("guidance_scale", c.guidance_scale);
  if (f.find("boundary")) f.read("boundary", c.boundary);
  if (f.find("guidance_scale_2")) f.read("guidance_scale_2", c.guidance_scale_2);
  f.finish();
  for (const std::string& e : model_config_errors(c)) f.problem(e);
  f.finish();
  return c;
}

}  // namespace megaslide
