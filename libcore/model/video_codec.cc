#include "model/video_codec.h"

#include "base/error.h"
#include "model/haar_codec.h"

namespace megaslide {

std::unique_ptr<VideoCodec> make_codec(const ModelParts& parts, DType compute_dtype) {
  (void)compute_dtype;
  switch (parts.config.codec) {
    case CodecKind::kHaar: return std::make_unique<HaarCodec>();
    case CodecKind::kWan21Vae:
    case CodecKind::kWan22Vae:
    case CodecKind::kNone: break;
  }
  throw usage_error(fmt::format("the model \"{}\" comes without a video codec", parts.config.name),
                    "use a model directory that holds one, or set `codec: haar` in the model's configuration");
}

std::string codec_identity(const ModelParts& parts) { return make_codec(parts)->identity(); }

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
