// What a model is: read from configs/models/*.yaml, from a model directory's manifest, or derived from a checkpoint.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megaslide {

enum class AttentionKind { kDense, kDenseMaterialised, kWindow, kDsa };
enum class DsaMode { kFull, kSlice, kRigid };
// Where offsets come from: the offset net; with it the motion term; with it a known motion in the place of what the motion
// term would find.
enum class DsaOffsets { kNet, kNetMotion, kNetGiven };

// A window of some heads, where not all heads of all layers have the same. What is not set is as in DsaConfig, but groups
// are at most its heads.
struct DsaHeadWindow {
  std::vector<int64_t> layers = {};  // empty: those that no other window names
  std::optional<int64_t> heads = std::nullopt;  // not set: all that are left. A layer's windows take its heads in order.
  std::optional<std::array<int64_t, 3>> kernel = std::nullopt;
  std::optional<std::array<double, 3>> reach = std::nullopt;
  std::optional<DsaMode> mode = std::nullopt;
  std::optional<int64_t> groups = std::nullopt;
  bool operator==(const DsaHeadWindow&) const = default;
};

// A run of a layer's heads with one window.
struct DsaHeads {
  int64_t first = 0, count = 0;
  std::array<int64_t, 3> kernel{};
  std::array<double, 3> reach{};
  DsaMode mode = DsaMode::kFull;
  int64_t groups = 0;
  // Raw offsets a token: G·K·3, G·k_t·2 or G·3 (spec dsa.md, granularity).
  int64_t offset_outputs() const;
};

struct DsaLayer {
  std::vector<DsaHeads> runs;  // of all heads, in order; offsets and gains of the motion term lie in this order too
  bool motion = false, pooled = false;  // motion: found or given
  bool given = false;
  int64_t offset_outputs() const;
  int64_t groups() const;
};

struct DsaConfig {
  std::array<int64_t, 3> kernel{3, 7, 7};  // k_t, k_h, k_w
  std::array<double, 3> reach{1, 2, 2};    // R_t, R_h, R_w in tokens; 0 switches an axis off
  DsaMode mode = DsaMode::kFull;
  int64_t groups = 4;
  std::optional<DsaOffsets> offsets = std::nullopt;  // not set: net+motion, and net where all windows are
                                                      // `rigid`, which has no motion term
  double motion_share = 0.5;  // of the groups, the last ones: where the motion term is in full force at the start
  bool pooled = false;        // the pooled branch
  std::vector<DsaHeadWindow> windows = {};  // empty: the one above for all heads of all layers

  bool motion() const;  // found or given
  // The windows of a layer's heads. Runs may cover fewer or more than `heads` where the config is not sound.
  DsaLayer layer(int64_t index, int64_t heads) const;
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::kDense;
  DsaConfig dsa;
  std::array<int64_t, 3> window{3, 7, 7};
  std::vector<AttentionKind> per_layer;  // empty: `kind` for all
  // Whether a layer's offsets need the true motion of the tokens with every batch.
  bool needs_displacement() const;
  AttentionKind of_layer(int64_t layer) const { return per_layer.empty() ? kind : per_layer[static_cast<size_t>(layer)]; }
};

// The codec and the text encoder that go with the transformer. The VAEs and UMT5 have weights of their own, in the folders
// vae/, text_encoder/ and tokenizer/ beside the transformer's.
enum class CodecKind { kNone, kHaar, kWan21Vae, kWan22Vae };
enum class TextEncoderKind { kNone, kHashedNgram, kUmt5 };

struct ModelConfig {
  std::string name = "custom";
  int64_t dim = 0;         // D
  int64_t heads = 0;
  int64_t ffn_dim = 0;
  int64_t layers = 0;
  int64_t in_channels = 16, out_channels = 16;
  int64_t text_dim = 4096, text_len = 512;
  int64_t freq_dim = 256;
  double eps = 1e-6;
  int64_t rope_max_seq_len = 1024;
  AttentionConfig attention;
  CodecKind codec = CodecKind::kNone;
  TextEncoderKind text_encoder = TextEncoderKind::kNone;
  // Defaults of sampling and encoding for this model.
  int64_t num_frames = 81, height = 480, width = 832;
  double fps = 16;
  int64_t steps = 50;
  double flow_shift = 5, guidance_scale = 5;
  // Two networks by noise level (Wan 2.2 A14B): the first serves timesteps t ≥ 1000·boundary, the second those below,
  // with a guidance of its own. 0: one network.
  double boundary = 0, guidance_scale_2 = 0;

  int64_t head_dim() const { return dim / heads; }
  // Pixels a latent cell and frames a latent frame.
  int64_t spatial_stride() const { return codec == CodecKind::kHaar ? 4 : codec == CodecKind::kWan22Vae ? 16 : 8; }
  int64_t temporal_stride() const { return 4; }
};

const char* attention_kind_name(AttentionKind k);  // "dense", "dense-materialised", "window", "dsa"
const char* dsa_mode_name(DsaMode m);
const char* dsa_offsets_name(DsaOffsets o);             // "net", "net+motion", "net+given"
const char* codec_kind_name(CodecKind k);               // "none", "haar", "wan2.1-vae", "wan2.2-vae"
const char* text_encoder_kind_name(TextEncoderKind k);  // "none", "hashed-ngram", "umt5"

// Parameters of the whole network, those of deformable attention included (closed form of spec wan.md A.1, dsa.md §1, §5).
int64_t parameter_count(const ModelConfig& c);

// Checks every relation between the fields (dim divisible by heads, even head width, groups ≤ heads, …). Throws a
// usage Error that lists all that is wrong.
void validate(const ModelConfig& c);

// The same findings, each "key: expected …, got …"; empty when the config is sound.
std::vector<std::string> model_config_errors(const ModelConfig& c);

}  // namespace megaslide
