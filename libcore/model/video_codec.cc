#include "model/video_codec.h"

#include "base/error.h"
#include "model/haar_codec.h"
#include "model/wan_vae.h"

namespace megaslide {

namespace {
[[noreturn]] void no_codec(const ModelParts& parts) {
  throw usage_error(fmt::format("the model \"{}\" comes without a video codec", parts.config.name),
                    "use a model directory that holds one, or set `codec: haar` in the model's configuration");
}

std::string wan_vae_identity(const ModelParts& parts) {
  if (parts.folder.empty())
    throw usage_error(fmt::format("the model \"{}\" names a Wan autoencoder, but there is no folder to read it from", parts.config.name),
                      "use a model directory or a diffusers folder that holds vae/");
  return (parts.config.codec == CodecKind::kWan21Vae ? "wan2.1-vae:" : "wan2.2-vae:") + part_identity(parts, "vae");
}

void check_kind(const ModelParts& parts, const WanVaeConfig& vae) {
  if (vae.residual == (parts.config.codec == CodecKind::kWan22Vae)) return;
  throw usage_error(fmt::format("{}/vae is an autoencoder of the {} kind, the model \"{}\" has one of the {} kind", parts.folder,
                                vae.residual ? "2.2" : "2.1", parts.config.name, vae.residual ? "2.1" : "2.2"),
                    "put the vae folder there that came with the transformer");
}
}  // namespace

std::unique_ptr<VideoCodec> make_codec(const ModelParts& parts, DType compute_dtype) {
  CodecOptions options;
  options.decode_dtype = compute_dtype;
  return make_codec(parts, options);
}

std::unique_ptr<VideoCodec> make_codec(const ModelParts& parts, const CodecOptions& given) {
  switch (parts.config.codec) {
    case CodecKind::kHaar: return std::make_unique<HaarCodec>();
    case CodecKind::kWan21Vae:
    case CodecKind::kWan22Vae: {
      WanVaeOptions options;
      options.encode_dtype = given.encode_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
      options.decode_dtype = given.decode_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
      options.tiling.enabled = given.tiling;
      options.memory = given.memory;
      std::string identity = wan_vae_identity(parts);
      auto vae = std::make_unique<WanVae>(parts.folder + "/vae", std::move(identity), options);
      check_kind(parts, vae->config());
      return vae;
    }
    case CodecKind::kNone: break;
  }
  no_codec(parts);
}

bool has_learned_codec(const ModelParts& parts) {
  return parts.config.codec == CodecKind::kWan21Vae || parts.config.codec == CodecKind::kWan22Vae;
}

std::string codec_identity(const ModelParts& parts) {
  switch (parts.config.codec) {
    case CodecKind::kHaar: return HaarCodec().identity();
    case CodecKind::kWan21Vae:
    case CodecKind::kWan22Vae: return wan_vae_identity(parts);
    case CodecKind::kNone: break;
  }
  no_codec(parts);
}

void check_video_shape(const VideoCodec& codec, const TensorView& video) {
  const Shape& s = video.shape;
  const int64_t r = codec.temporal_stride(), p = codec.spatial_stride();
  if (video.dtype != DType::kF32 || s.size() != 4 || s[0] != 3)
    throw usage_error(fmt::format("a video tensor must be F32 [3, F, H, W], this one is {} {}", dtype_name(video.dtype), to_string(s)));
  if (s[1] < 1 || (s[1] - 1) % r != 0)
    throw usage_error(fmt::format("{} frames do not fit the codec", s[1]), fmt::format("use {}k+1 frames: 1, {}, {}, ...", r, r + 1, 2 * r + 1));
  if (s[2] < p || s[3] < p || s[2] % p != 0 || s[3] % p != 0)
    throw usage_error(fmt::format("a size of {}x{} does not fit the codec", s[3], s[2]), fmt::format("use multiples of {}", p));
}

void check_latent_shape(const VideoCodec& codec, const TensorView& latent) {
  const Shape& s = latent.shape;
  if (latent.dtype != DType::kF32 || s.size() != 4 || s[0] != codec.channels() || s[1] < 1 || s[2] < 1 || s[3] < 1)
    throw usage_error(fmt::format("a latent of this codec is F32 [{}, T, h, w], this one is {} {}", codec.channels(), dtype_name(latent.dtype), to_string(s)));
}

}  // namespace megaslide
