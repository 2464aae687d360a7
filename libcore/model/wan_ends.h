// The resident ends of the Wan transformer: patch, text and time embedding (spec wan.md A.2–A.4), and the head (A.9).
#pragma once
#include <cstdint>

#include "config/model_config.h"
#include "kernels/patch/patch.h"
#include "model/wan_module.h"

namespace megaslide {

class WanEmbedding final : public WanModule<Embedding> {
 public:
  explicit WanEmbedding(const ModelConfig& config);
  int64_t saved_bytes(const BatchShape& shape, DType compute_dtype) const override;
  void conditioning_forward(const LayerCall& call, const float* timesteps, const float* text, float* context, float* time,
                            float* modulation, void* saved) const override;
  void conditioning_backward(const LayerCall& call, const float* text, const void* saved, float* dcontext, float* dtime,
                             float* dmodulation, float* dtext, float* dweights) const override;
  void tokens_forward(const LayerCall& call, const float* latent, float* tokens) const override;
  void tokens_backward(const LayerCall& call, const float* latent, const float* dtokens, float* dlatent, float* dweights) const override;

 private:
  struct Saved {
    float* features;     // (B·times, freq_dim)
    float* time_hidden;  // (B·times, D) before SiLU
    float* time;         // (B·times, D) e
    void* text_hidden;   // operand (B·S, D) before GELU
  };
  Saved carve(Workspace& w, const BatchShape& shape, DType dtype) const;
  PatchShape patch_shape(const BatchShape& shape) const;
  void text_forward(const WanCall& c, const float* text, float* context, void* text_hidden) const;
  void time_forward(const WanCall& c, const Saved& s, const float* timesteps, float* time, float* modulation) const;
  void text_backward(const WanCall& c, const Saved& s, const float* text, const float* dcontext, float* dtext) const;
  void time_backward(const WanCall& c, const Saved& s, float* dtime, const float* dmodulation) const;

  int64_t width_, channels_, text_width_, frequencies_;
};

class WanHead final : public WanModule<Head> {
 public:
  explicit WanHead(const ModelConfig& config);
  int64_t saved_bytes(const BatchShape& shape, DType compute_dtype) const override;
  void forward(const LayerCall& call, const float* tokens, const float* time, float* out, void* saved) const override;
  void backward(const LayerCall& call, const float* tokens, const float* time, const void* saved, const float* dout,
                float* dtokens, float* dtime, float* dweights) const override;

 private:
  struct Saved {
    float* modulation;  // (B·times, 2, D): shift, 1 + scale
    void* z;            // operand (R, D): modulated norm
  };
  Saved carve(Workspace& w, const BatchShape& shape, DType dtype) const;
  PatchShape patch_shape(const BatchShape& shape) const;

  int64_t width_, channels_;
  float eps_;
};

}  // namespace megaslide
