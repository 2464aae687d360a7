#include "config/model_config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace megaslide {
namespace {

// Larger values than any network will have, small enough that products of sizes stay within 64 bits.
constexpr int64_t kMaxWidth = int64_t{1} << 17, kMaxLayers = 4096, kMaxTextLen = int64_t{1} << 20;

class Findings {
 public:
  template <class... A>
  void require(bool holds, fmt::format_string<A...> format, A&&... args) {
    if (!holds) lines_.push_back(fmt::format(format, std::forward<A>(args)...));
  }
  void require_between(const char* name, int64_t value, int64_t low, int64_t high) {
    require(value >= low && value <= high, "{}: expected {} to {}, got {}", name, low, high, value);
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

// That each layer's windows take all heads, no more, and have at least a head a group.
void check_windows(const ModelConfig& c, Findings& f) {
  const auto& windows = c.attention.dsa.windows;
  for (size_t i = 0; i < windows.size(); ++i)
    for (const int64_t layer : windows[i].layers)
      f.require(layer < c.layers, "dsa.windows: window {} is for layer {}, but the layers are 0 to {}", i + 1, layer, c.layers - 1);
  std::set<std::string> said;  // layers may be many and alike
  for (int64_t l = 0; l < c.layers; ++l) {
    const DsaLayer layer = c.attention.dsa.layer(l, c.heads);
    const DsaHeads& last = layer.runs.back();
    if (last.first + last.count != c.heads && said.insert("heads").second)
      f.require(false, "dsa.windows: those of layer {} are for {} heads, but there are {}", l, last.first + last.count, c.heads);
    for (const DsaHeads& run : layer.runs)
      if (run.groups > run.count && said.insert("groups").second)
        f.require(false, "dsa.windows: layer {} has a window of {} heads in {} groups", l, run.count, run.groups);
  }
}

void check_attention(const ModelConfig& c, Findings& f) {
  const AttentionConfig& a = c.attention;
  f.require(a.per_layer.empty() || static_cast<int64_t>(a.per_layer.size()) == c.layers,
            "attention_per_layer: expected one entry a layer ({}), got {}", c.layers, a.per_layer.size());
  const char* axes = "thw";
  for (size_t i = 0; i < 3; ++i) {
    f.require(a.dsa.kernel[i] >= 1 && a.dsa.kernel[i] <= 63, "dsa.kernel: expected 1 to 63 along {}, got {}",
              axes[i], a.dsa.kernel[i]);
    f.require(a.dsa.reach[i] >= 0 && a.dsa.reach[i] <= 32, "dsa.reach: expected 0 to 32 along {}, got {}",
              axes[i], a.dsa.reach[i]);
    f.require(a.window[i] >= 1 && a.window[i] <= 1024, "window: expected 1 to 1024 along {}, got {}", axes[i],
              a.window[i]);
  }
  const auto& windows = a.dsa.windows;
  f.require(a.dsa.groups >= 1 && (!windows.empty() || a.dsa.groups <= c.heads), "dsa.groups: expected 1 to the number of heads ({}), got {}",
            c.heads, a.dsa.groups);
  const auto rigid = [&](const DsaHeadWindow& w) { return w.mode.value_or(a.dsa.mode) == DsaMode::kRigid; };
  const bool none_moves = windows.empty() ? a.dsa.mode == DsaMode::kRigid : std::all_of(windows.begin(), windows.end(), rigid);
  f.require(!a.dsa.motion() || !none_moves,
            "dsa.offsets: net+motion and net+given go with the modes full and slice, whose samples have a frame of their own; for rigid use net");
  if (!windows.empty()) check_windows(c, f);
  f.require(a.dsa.motion_share >= 0 && a.dsa.motion_share <= 1, "dsa.motion_share: expected 0 to 1, got {}", a.dsa.motion_share);
}

void check_sampling_defaults(const ModelConfig& c, Findings& f) {
  const int64_t ts = c.temporal_stride(), ss = 2 * c.spatial_stride();
  f.require(c.num_frames >= 1 && c.num_frames <= 65536 && c.num_frames % ts == 1, "num_frames: expected {}k+1, got {}", ts,
            c.num_frames);
  f.require(c.width >= ss && c.width <= 65536 && c.width % ss == 0 && c.height >= ss && c.height <= 65536 && c.height % ss == 0,
            "size: expected a width and a height that are multiples of {}, got {}x{}", ss, c.width, c.height);
  f.require(c.fps > 0 && c.fps <= 1000, "fps: expected a number > 0 and <= 1000, got {}", c.fps);
  f.require_between("steps", c.steps, 1, 1000);
  f.require(c.flow_shift > 0 && c.flow_shift <= 100, "flow_shift: expected a number > 0 and <= 100, got {}", c.flow_shift);
  f.require(c.guidance_scale >= 0 && c.guidance_scale <= 100, "guidance_scale: expected 0 to 100, got {}", c.guidance_scale);
}

}  // namespace

int64_t DsaHeads::offset_outputs() const {
  switch (mode) {
    case DsaMode::kFull: return 3 * groups * kernel[0] * kernel[1] * kernel[2];
    case DsaMode::kSlice: return 2 * groups * kernel[0];
    case DsaMode::kRigid: return 3 * groups;
  }
  return 0;
}

int64_t DsaLayer::offset_outputs() const {
  int64_t n = 0;
  for (const DsaHeads& run : runs) n += run.offset_outputs();
  return n;
}

int64_t DsaLayer::groups() const {
  int64_t n = 0;
  for (const DsaHeads& run : runs) n += run.groups;
  return n;
}

bool AttentionConfig::needs_displacement() const {
  const bool deformable = per_layer.empty() ? kind == AttentionKind::kDsa : std::find(per_layer.begin(), per_layer.end(), AttentionKind::kDsa) != per_layer.end();
  return deformable && dsa.offsets == DsaOffsets::kNetGiven;
}

bool DsaConfig::motion() const {
  if (offsets) return *offsets != DsaOffsets::kNet;
  if (windows.empty()) return mode != DsaMode::kRigid;
  return std::any_of(windows.begin(), windows.end(), [&](const DsaHeadWindow& w) { return w.mode.value_or(mode) != DsaMode::kRigid; });
}

DsaLayer DsaConfig::layer(int64_t index, int64_t heads) const {
  const auto names = [&](const DsaHeadWindow& w) { return std::find(w.layers.begin(), w.layers.end(), index) != w.layers.end(); };
  const bool named = std::any_of(windows.begin(), windows.end(), names);
  DsaLayer out;
  int64_t first = 0;
  const auto add = [&](const DsaHeadWindow& w) {
    const int64_t count = w.heads.value_or(heads - first);
    if (count < 1) return;
    // Without windows of their own the groups are as they were asked for, sound or not.
    const int64_t most = windows.empty() ? groups : std::min(groups, count);
    out.runs.push_back({first, count, w.kernel.value_or(kernel), w.reach.value_or(reach), w.mode.value_or(mode), w.groups.value_or(most)});
    first += count;
  };
  for (const DsaHeadWindow& w : windows)
    if (named ? names(w) : w.layers.empty()) add(w);
  if (out.runs.empty()) add({});
  out.motion = motion() && std::any_of(out.runs.begin(), out.runs.end(), [](const DsaHeads& r) { return r.mode != DsaMode::kRigid; });
  out.given = out.motion && offsets == DsaOffsets::kNetGiven;
  out.pooled = pooled;
  return out;
}

const char* attention_kind_name(AttentionKind k) {
  switch (k) {
    case AttentionKind::kDense: return "dense";
    case AttentionKind::kDenseMaterialised: return "dense-materialised";
    case AttentionKind::kWindow: return "window";
    case AttentionKind::kDsa: return "dsa";
  }
  return "?";
}

const char* dsa_mode_name(DsaMode m) {
  switch (m) {
    case DsaMode::kFull: return "full";
    case DsaMode::kSlice: return "slice";
    case DsaMode::kRigid: return "rigid";
  }
  return "?";
}

const char* dsa_offsets_name(DsaOffsets o) {
  switch (o) {
    case DsaOffsets::kNet: return "net";
    case DsaOffsets::kNetMotion: return "net+motion";
    case DsaOffsets::kNetGiven: return "net+given";
  }
  return "?";
}

const char* codec_kind_name(CodecKind k) {
  switch (k) {
    case CodecKind::kNone: return "none";
    case CodecKind::kHaar: return "haar";
    case CodecKind::kWan21Vae: return "wan2.1-vae";
    case CodecKind::kWan22Vae: return "wan2.2-vae";
  }
  return "?";
}

const char* text_encoder_kind_name(TextEncoderKind k) {
  switch (k) {
    case TextEncoderKind::kNone: return "none";
    case TextEncoderKind::kHashedNgram: return "hashed-ngram";
    case TextEncoderKind::kUmt5: return "umt5";
  }
  return "?";
}

int64_t parameter_count(const ModelConfig& c) {
  const int64_t d = c.dim, f = c.ffn_dim;
  int64_t n = c.layers * (8 * d * d + 2 * d * f + 21 * d + f);
  n += 4 * c.in_channels * d + d;                            // patch embedding
  n += c.text_dim * d + d * d + 2 * d;                       // text MLP
  n += c.freq_dim * d + d * d + 2 * d;                       // time MLP
  n += 6 * d * d + 6 * d;                                    // time projection
  n += 4 * c.out_channels * d + 4 * c.out_channels + 2 * d;  // head and its table
  for (int64_t l = 0; l < c.layers; ++l) {
    if (c.attention.of_layer(l) != AttentionKind::kDsa) continue;
    const DsaLayer dsa = c.attention.dsa.layer(l, c.heads);
    n += 28 * d + 2 * d + (d + 1) * dsa.offset_outputs();  // depthwise 3x3x3 and bias, LayerNorm, linear
    if (dsa.motion) n += 16 * d + 1 + dsa.groups();        // projection, scale, gains
    if (dsa.pooled) n += c.heads;                          // gates
  }
  return n;
}

std::vector<std::string> model_config_errors(const ModelConfig& c) {
  Findings f;
  f.require_between("dim", c.dim, 2, kMaxWidth);
  f.require_between("heads", c.heads, 1, 4096);
  f.require_between("ffn_dim", c.ffn_dim, 1, 8 * kMaxWidth);
  f.require_between("layers", c.layers, 1, kMaxLayers);
  f.require_between("in_channels", c.in_channels, 1, 1024);
  f.require_between("out_channels", c.out_channels, 1, 1024);
  f.require(c.out_channels <= c.in_channels, "out_channels: expected at most in_channels ({}), got {}", c.in_channels, c.out_channels);
  f.require_between("text_dim", c.text_dim, 1, kMaxWidth);
  f.require_between("text_len", c.text_len, 1, kMaxTextLen);
  f.require(c.freq_dim >= 2 && c.freq_dim <= 65536 && c.freq_dim % 2 == 0, "freq_dim: expected an even number from 2 to 65536, got {}",
            c.freq_dim);
  f.require(c.eps > 0 && c.eps <= 0.01, "eps: expected a number > 0 and <= 0.01, got {}", c.eps);
  f.require_between("rope_max_seq_len", c.rope_max_seq_len, 1, 1 << 20);
  if (c.dim >= 2 && c.heads >= 1) {
    f.require(c.dim % c.heads == 0, "heads: expected a divisor of dim ({}), got {}", c.dim, c.heads);
    f.require(c.dim % c.heads != 0 || c.head_dim() % 2 == 0,
              "heads: RoPE turns pairs of channels, so dim / heads must be even, got {} / {} = {}", c.dim, c.heads, c.head_dim());
  }
  f.require(c.codec != CodecKind::kHaar || (c.in_channels == 16 && c.out_channels == 16),
            "codec: haar has 16 latent channels, but in_channels is {} and out_channels is {}", c.in_channels, c.out_channels);
  f.require(c.boundary >= 0 && c.boundary < 1, "boundary: expected a number >= 0 and < 1, got {}", c.boundary);
  f.require(c.guidance_scale_2 >= 0 && c.guidance_scale_2 <= 100, "guidance_scale_2: expected a number from 0 to 100, got {}", c.guidance_scale_2);
  check_attention(c, f);
  check_sampling_defaults(c, f);
  return f.lines();
}

void validate(const ModelConfig& c) {
  const std::vector<std::string> lines = model_config_errors(c);
  if (lines.empty()) return;
  std::string text = fmt::format("model {}: ", c.name);
  if (lines.size() > 1) text += fmt::format("{} errors", lines.size());
  for (const std::string& line : lines) text += (lines.size() > 1 ? "\n  " : "") + line;
  throw usage_error(text, "see megaslide-model(5) for the keys and their ranges");
}

}  // namespace megaslide
