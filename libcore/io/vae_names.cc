// The tensors of the Wan VAEs.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/part_names.h"

namespace megaslide {
namespace {

constexpr int64_t kMult[] = {1, 2, 4, 4};
constexpr bool kTemporalDown[] = {false, true, true};
constexpr int kStages = 4, kBlocks = 2;  // residual blocks an encoder stage; a decoder stage has one more

// spec wan.md C.5 and C.7: statistics of the published VAEs' latents.
constexpr double kMean16[] = {-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
                              0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921};
constexpr double kStd16[] = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
                             3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160};
constexpr double kMean48[] = {-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891,
                              0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502,
                              -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313, -0.1649, 0.0117, 0.0723,
                              -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667};
constexpr double kStd48[] = {0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
                             0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
                             0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
                             0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744};

class Lister {
 public:
  std::vector<PartTensor> out;

  void conv(const std::string& name, const std::string& original, Shape weight) {
    const int64_t rows = weight[0];
    out.push_back({name + ".weight", original + ".weight", std::move(weight)});
    out.push_back({name + ".bias", original + ".bias", {rows}});
  }
  void residual(const std::string& name, const std::string& original, int64_t in, int64_t to) {
    out.push_back({name + ".norm1.gamma", original + ".residual.0.gamma", {in, 1, 1, 1}});
    conv(name + ".conv1", original + ".residual.2", {to, in, 3, 3, 3});
    out.push_back({name + ".norm2.gamma", original + ".residual.3.gamma", {to, 1, 1, 1}});
    conv(name + ".conv2", original + ".residual.6", {to, to, 3, 3, 3});
    if (in != to) conv(name + ".conv_shortcut", original + ".shortcut", {to, in, 1, 1, 1});
  }
  void middle(const std::string& side, int64_t c) {
    residual(side + ".mid_block.resnets.0", side + ".middle.0", c, c);
    const std::string name = side + ".mid_block.attentions.0", original = side + ".middle.1";
    out.push_back({name + ".norm.gamma", original + ".norm.gamma", {c, 1, 1}});
    conv(name + ".to_qkv", original + ".to_qkv", {3 * c, c, 1, 1});
    conv(name + ".proj", original + ".proj", {c, c, 1, 1});
    residual(side + ".mid_block.resnets.1", side + ".middle.2", c, c);
  }
  void ends(const std::string& side, int64_t c, int64_t to) {
    out.push_back({side + ".norm_out.gamma", side + ".head.0.gamma", {c, 1, 1, 1}});
    conv(side + ".conv_out", side + ".head.2", {to, c, 3, 3, 3});
  }

  void encoder(const VaeShape& s) {
    conv("encoder.conv_in", "encoder.conv1", {s.base_dim, s.in_channels, 3, 3, 3});
    int64_t in = s.base_dim;
    int flat = 0;  // blocks of the 2.1 VAE are numbered through
    for (int i = 0; i < kStages; ++i) {
      const int64_t to = s.base_dim * kMult[i];
      for (int j = 0; j < kBlocks; ++j, in = to) {
        if (s.residual) residual(fmt::format("encoder.down_blocks.{}.resnets.{}", i, j), fmt::format("encoder.downsamples.{}.downsamples.{}", i, j), in, to);
        else residual(fmt::format("encoder.down_blocks.{}", flat), fmt::format("encoder.downsamples.{}", flat), in, to), ++flat;
      }
      if (i == kStages - 1) break;
      const std::string name = s.residual ? fmt::format("encoder.down_blocks.{}.downsampler", i) : fmt::format("encoder.down_blocks.{}", flat);
      const std::string original = s.residual ? fmt::format("encoder.downsamples.{}.downsamples.{}", i, kBlocks) : fmt::format("encoder.downsamples.{}", flat);
      ++flat;
      conv(name + ".resample.1", original + ".resample.1", {to, to, 3, 3});
      if (kTemporalDown[i]) conv(name + ".time_conv", original + ".time_conv", {to, to, 3, 1, 1});
    }
    middle("encoder", in);
    ends("encoder", in, 2 * s.z_dim);
  }

  void decoder(const VaeShape& s) {
    const int64_t base = s.decoder_base_dim;
    int64_t in = base * kMult[kStages - 1];
    conv("decoder.conv_in", "decoder.conv1", {in, s.z_dim, 3, 3, 3});
    middle("decoder", in);
    int flat = 0;
    for (int i = 0; i < kStages; ++i) {
      const int64_t to = base * kMult[kStages - 1 - i];
      for (int j = 0; j <= kBlocks; ++j, in = to) {
        const std::string original = s.residual ? fmt::format("decoder.upsamples.{}.upsamples.{}", i, j) : fmt::format("decoder.upsamples.{}", flat);
        residual(fmt::format("decoder.up_blocks.{}.resnets.{}", i, j), original, in, to);
        ++flat;
      }
      if (i == kStages - 1) break;
      const std::string name = fmt::format("decoder.up_blocks.{}.{}", i, s.residual ? "upsampler" : "upsamplers.0");
      const std::string original = s.residual ? fmt::format("decoder.upsamples.{}.upsamples.{}", i, kBlocks + 1) : fmt::format("decoder.upsamples.{}", flat);
      ++flat;
      // The 2.1 VAE halves the channels here, so that the next stage starts from half.
      in = s.residual ? to : to / 2;
      conv(name + ".resample.1", original + ".resample.1", {in, to, 3, 3});
      if (kTemporalDown[kStages - 2 - i]) conv(name + ".time_conv", original + ".time_conv", {2 * to, to, 3, 1, 1});
    }
    ends("decoder", in, s.out_channels);
  }
};

int64_t extent(const TensorSource& source, const std::string& name, size_t axis) {
  const auto* e = source.find(name);
  if (!e || e->shape.size() <= axis || e->shape[axis] < 1 || e->shape[axis] > (1 << 20))
    throw Error(fmt::format("{}: a Wan VAE without a usable tensor {}", source.path(), name), "fetch the file again, complete");
  return e->shape[axis];
}

std::string make_config(const VaeShape& s, const std::string& path) {
  if (s.z_dim != 16 && s.z_dim != 48)
    throw Error(fmt::format("{}: a VAE of {} latent channels, whose mean and deviation are not known", path, s.z_dim), "put its config.json beside it");
  nlohmann::ordered_json j = {{"_class_name", "AutoencoderKLWan"}, {"_diffusers_version", "0.35.0"}, {"attn_scales", nlohmann::json::array()},
                              {"base_dim", s.base_dim}, {"decoder_base_dim", nullptr}, {"dim_mult", kMult}, {"dropout", 0.0},
                              {"in_channels", s.in_channels}, {"is_residual", s.residual}};
  if (s.residual) j["decoder_base_dim"] = s.decoder_base_dim;
  j["latents_mean"] = s.z_dim == 16 ? nlohmann::json(kMean16) : nlohmann::json(kMean48);
  j["latents_std"] = s.z_dim == 16 ? nlohmann::json(kStd16) : nlohmann::json(kStd48);
  j["num_res_blocks"] = kBlocks;
  j["out_channels"] = s.out_channels;
  // The 2.2 VAE sees pixels in patches of 2x2.
  j["patch_size"] = s.residual ? nlohmann::json(2) : nlohmann::json(nullptr);
  j["scale_factor_spatial"] = s.residual ? 16 : 8;
  j["scale_factor_temporal"] = 4;
  j["temperal_downsample"] = kTemporalDown;
  j["z_dim"] = s.z_dim;
  return j.dump(2) + "\n";
}

bool starts_any(const TensorSource& source, const std::string& start) {
  const auto it = source.tensors().lower_bound(start);
  return it != source.tensors().end() && it->first.starts_with(start);
}

}  // namespace

std::vector<PartTensor> vae_tensors(const VaeShape& s) {
  Lister l;
  l.encoder(s);
  l.conv("quant_conv", "conv1", {2 * s.z_dim, 2 * s.z_dim, 1, 1, 1});
  l.conv("post_quant_conv", "conv2", {s.z_dim, s.z_dim, 1, 1, 1});
  l.decoder(s);
  return std::move(l.out);
}

PartCheckpoint identify_vae(const TensorSource& source, const std::string& config_json) {
  PartCheckpoint part;
  bool found = false;
  for (const char* prefix : {"", "module.", "model.", "vae.", "first_stage_model."}) {
    for (const bool original : {false, true}) {
      if (found || !source.find(std::string(prefix) + (original ? "encoder.conv1.weight" : "encoder.conv_in.weight"))) continue;
      if (!source.find(std::string(prefix) + (original ? "conv2.weight" : "post_quant_conv.weight"))) continue;
      part.prefix = prefix;
      part.original = original;
      found = true;
    }
  }
  if (!found) throw Error(fmt::format("{}: not a Wan VAE", source.path()), "give the VAE of Wan 2.1 or 2.2, in the original or the diffusers layout");
  const auto at = [&](const char* original, const char* diffusers, size_t axis) { return extent(source, part.prefix + (part.original ? original : diffusers), axis); };
  VaeShape s;
  s.residual = starts_any(source, part.prefix + (part.original ? "encoder.downsamples.0.downsamples." : "encoder.down_blocks.0.resnets."));
  s.base_dim = at("encoder.conv1.weight", "encoder.conv_in.weight", 0);
  s.in_channels = at("encoder.conv1.weight", "encoder.conv_in.weight", 1);
  s.z_dim = at("conv2.weight", "post_quant_conv.weight", 0);
  s.out_channels = at("decoder.head.2.weight", "decoder.conv_out.weight", 0);
  s.decoder_base_dim = s.residual ? at("decoder.head.0.gamma", "decoder.norm_out.gamma", 0) : s.base_dim;
  part.codec = s.residual ? CodecKind::kWan22Vae : CodecKind::kWan21Vae;
  part.width = s.z_dim;
  part.tensors = vae_tensors(s);
  match_part(source, part, s.residual ? "a Wan 2.2 VAE" : "a Wan 2.1 VAE");
  part.config_json = config_json.empty() || part.original ? make_config(s, source.path()) : config_json;
  return part;
}

}  // namespace megaslide
