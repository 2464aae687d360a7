// The video autoencoders of Wan 2.1 and 2.2 (spec wan.md C) from a folder in diffusers' form.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "model/vae_tiles.h"
#include "model/video_codec.h"
#include "model/wan_vae_network.h"

namespace megaslide {

struct WanVaeOptions {
  DType decode_dtype = DType::kF32;  // of the convolutions and of what lies between them: kF32 or kBF16
  // In bf16 the encoder is off by 1% and more (spec wan.md H.3), so that it computes in fp32 unless told otherwise.
  DType encode_dtype = DType::kF32;
  VaeTiling tiling = {};
  // Of the device that computes and keeps weights and frames, and outlives the autoencoder; nullptr: the processor.
  ModelMemory* memory = nullptr;
};

class WanVae final : public VideoCodec {
 public:
  // `folder` holds config.json and *.safetensors. Checks all names and shapes; the weights of a side are read when it
  // is first used. Usage Errors list what is wrong.
  WanVae(const std::string& folder, std::string identity, const WanVaeOptions& options = {});
  ~WanVae() override;

  std::string identity() const override { return identity_; }
  int64_t channels() const override { return config_.z_dim; }
  int64_t spatial_stride() const override { return config_.spatial_stride(); }
  int64_t temporal_stride() const override { return config_.temporal_stride(); }
  const WanVaeConfig& config() const { return config_; }

  // Values that are not finite are usage Errors.
  Encoded encode_moments(ThreadPool& pool, const TensorView& video) const override;
  HostTensor decode(ThreadPool& pool, const TensorView& latent) const override;
  int64_t working_bytes(int64_t frames, int64_t height, int64_t width) const override;
  int64_t decoding_device_bytes(int64_t height, int64_t width) const override;

  // What the last convolution gives for one clip, [C, T, h, w]: mean and log-variance, [2z, ...], or pixels before
  // patches are laid out, [3p², ...]. Never tiled. `observer` sees every stage's frames.
  HostTensor run_encoder(ThreadPool& pool, const TensorView& video, const WanVaeObserver* observer = nullptr) const;
  HostTensor run_decoder(ThreadPool& pool, const TensorView& latent, const WanVaeObserver* observer = nullptr) const;

 private:
  struct Side {
    std::vector<WanVaeStep> steps;
    mutable std::once_flag once;
    mutable std::vector<WanVaeStepWeights> weights;
  };
  struct Region {
    int64_t y, x, height, width;  // cells of the network's input
  };
  ModelBuffer vector(const std::vector<float>& values) const;
  const Side& loaded(Stream& stream, WanVaeSide which) const;
  // `out_patch`: the network's output channels are patches of so many pixels to lay out.
  HostTensor run(ThreadPool& pool, WanVaeSide which, const TensorView& in, const Region& g, int64_t out_patch,
                 const WanVaeObserver* observer) const;
  // Bytes of a device's memory for frames of a region of so many cells, `across` in the whole frame's rows. Error where they
  // and the weights do not fit beside what is there.
  int64_t device_bytes(WanVaeSide which, int64_t height, int64_t width, int64_t across) const;
  void check_device(WanVaeSide which, int64_t height, int64_t width, int64_t across) const;
  // nullopt where the frame is not to be tiled.
  std::optional<TileGrid> tiles(WanVaeSide side, const TensorView& in) const;
  HostTensor run_tiles(ThreadPool& pool, WanVaeSide side, const TensorView& in, const TileGrid& grid) const;
  DType dtype(WanVaeSide side) const {
    return side == WanVaeSide::kEncoder ? options_.encode_dtype : options_.decode_dtype;
  }

  std::string folder_, identity_;
  WanVaeConfig config_;
  WanVaeOptions options_;
  SafetensorsSource source_;
  Side encoder_, decoder_;
};

}  // namespace megaslide
