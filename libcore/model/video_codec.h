// Pixels to latents and back. One interface for the training-free Haar codec and for a learned VAE.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "model/model_memory.h"
#include "model/model_parts.h"
#include "tensor/tensor.h"

namespace megaslide {

class VideoCodec {
 public:
  virtual ~VideoCodec() = default;

  // Names the codec and its constants; latents of different identities must not be mixed (caches record it).
  virtual std::string identity() const = 0;
  virtual int64_t channels() const = 0;         // C
  virtual int64_t spatial_stride() const = 0;   // s, pixels a latent cell
  virtual int64_t temporal_stride() const = 0;  // r, frames a latent frame; the first frame has one of its own

  // What an encoder returns: the distribution of the latent, and its mean normalised for the transformer.
  struct Encoded {
    HostTensor mean, logvar, normalised;  // each F32 [C, 1+(F-1)/r, H/s, W/s]
  };
  // `video`: F32 [3, F, H, W] in [-1, 1], F = r·k + 1, H and W multiples of s; a usage Error otherwise.
  virtual Encoded encode_moments(ThreadPool& pool, const TensorView& video) const = 0;
  HostTensor encode(ThreadPool& pool, const TensorView& video) const { return encode_moments(pool, video).normalised; }
  // `latent`: F32 [C, T, h, w], normalised. Returns F32 [3, r·(T-1)+1, s·h, s·w], not clipped.
  virtual HostTensor decode(ThreadPool& pool, const TensorView& latent) const = 0;
  // Bytes that encoding or decoding a clip of this size in pixels holds besides its input, its output and the weights.
  virtual int64_t working_bytes(int64_t /*frames*/, int64_t /*height*/, int64_t /*width*/) const { return 0; }
  // Bytes of a device's memory that decoding to this size in pixels takes there, weights and all; 0: the processor decodes.
  virtual int64_t decoding_device_bytes(int64_t /*height*/, int64_t /*width*/) const { return 0; }
};

// The codec of a model; `compute_dtype` is that of a learned codec's convolutions. A usage Error where the model names none
// or its files are missing.
std::unique_ptr<VideoCodec> make_codec(const ModelParts& parts, DType compute_dtype = DType::kF32);
struct CodecOptions {
  DType encode_dtype = DType::kF32;  // of a learned codec's convolutions; in bf16 latents are off by 1% and more
  DType decode_dtype = DType::kF32;
  bool tiling = false;               // a learned codec takes large pictures tile by tile: less memory, a slightly other result
  ModelMemory* memory = nullptr;     // of the device where a learned codec computes, until it is gone; nullptr: the processor
};
std::unique_ptr<VideoCodec> make_codec(const ModelParts& parts, const CodecOptions& given);
// Whether the codec is a network, which can compute on a device.
bool has_learned_codec(const ModelParts& parts);
// Names the codec without loading it: identity() of what make_codec returns.
std::string codec_identity(const ModelParts& parts);

// Shape checks shared by codecs; usage Errors name the sizes that would do.
void check_video_shape(const VideoCodec& codec, const TensorView& video);
void check_latent_shape(const VideoCodec& codec, const TensorView& latent);

}  // namespace megaslide
