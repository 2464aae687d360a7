// A network whose arithmetic is trivial and whose schedule is real: per-channel scale and shift, enough parameters for
// every upload, gradient and update to matter.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "base/philox.h"
#include "device/device.h"
#include "model/layer.h"
#include "stream/host_store.h"
#include "stream/micro_batch.h"

namespace megaslide::testing {

inline float weight_at(const void* weights, DType dtype, int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(weights)[i] : to_float(static_cast<const bf16*>(weights)[i]);
}

// Parameters "scale" and "shift" of `width` elements each; packing copies the slab, so that packing is needed.
template <class Base>
class ScaleShift : public Base {
 public:
  explicit ScaleShift(int64_t width)
      : width_(width), params_{{"scale", {width}, ParamInit::kOnes}, {"shift", {width}, ParamInit::kZeros}}, layout_(params_) {}
  const std::vector<ParamSpec>& params() const override { return params_; }
  const ParamLayout& layout() const override { return layout_; }
  int64_t packed_bytes(DType dtype, bool) const override { return layout_.elements * dtype_bytes(dtype); }
  void pack(Stream& s, DType dtype, bool, const void* weights, void* packed) const override {
    s.enqueue("toy pack", {KernelClass::kPack, 0, 0},
              [=, n = layout_.elements * dtype_bytes(dtype)] { std::memcpy(packed, weights, static_cast<size_t>(n)); });
  }

 protected:
  // y = x · scale + shift, rows of `width`.
  void apply(const LayerCall& c, const float* x, float* y, int64_t rows) const {
    c.stream.enqueue("toy forward", {KernelClass::kGemm, 2.0 * static_cast<double>(rows * width_), 0}, [=, this, w = c.packed, t = c.compute_dtype] {
      for (int64_t i = 0; i < rows * width_; ++i)
        y[i] = x[i] * weight_at(w, t, layout_.offset[0] + i % width_) + weight_at(w, t, layout_.offset[1] + i % width_);
    });
  }
  // dx = dy · scale (may alias dy); dscale += Σ dy·x, dshift += Σ dy.
  void differentiate(const LayerCall& c, const float* x, const float* dy, float* dx, float* dw, int64_t rows) const {
    c.stream.enqueue("toy backward", {KernelClass::kGemm, 4.0 * static_cast<double>(rows * width_), 0}, [=, this, w = c.packed, t = c.compute_dtype] {
      for (int64_t i = 0; i < rows * width_; ++i) {
        const int64_t k = i % width_;
        dw[layout_.offset[0] + k] += dy[i] * x[i];
        dw[layout_.offset[1] + k] += dy[i];
        if (dx) dx[i] = dy[i] * weight_at(w, t, layout_.offset[0] + k);
      }
    });
  }
  int64_t width_;
  std::vector<ParamSpec> params_;
  ParamLayout layout_;
};

class ToyLayer : public ScaleShift<Layer> {
 public:
  using ScaleShift::ScaleShift;
  int64_t saved_bytes(const BatchShape&, DType) const override { return 0; }
  void forward(const LayerCall& c, const Conditioning&, const float* x, float* y, void*) const override {
    WorkspaceScope scope(c.workspace);
    auto* t = c.workspace.take<float>(c.shape.rows() * width_);
    apply(c, x, t, c.shape.rows());
    c.stream.enqueue("toy copy", {}, [=, n = c.shape.rows() * width_] { std::memcpy(y, t, static_cast<size_t>(n) * 4); });
  }
  void backward(const LayerCall& c, const Conditioning&, const float* x, const void*, const float* dy, float* dx, float* dw) const override {
    differentiate(c, x, dy, dx, dw, c.shape.rows());
  }
  std::optional<FrameRange> sees(int64_t, FrameRange own) const override { return own; }
};

// Latent channel count = width, patch 1: tokens are the latent's own numbers in order.
class ToyEmbedding : public ScaleShift<Embedding> {
 public:
  using ScaleShift::ScaleShift;
  int64_t saved_bytes(const BatchShape&, DType) const override { return 0; }
  void conditioning_forward(const LayerCall&, const float*, const float*, float*, float*, float*, void*) const override {}
  void conditioning_backward(const LayerCall&, const float*, const void*, float*, float*, float*, float*, float*) const override {}
  void tokens_forward(const LayerCall& c, const float* latent, float* tokens) const override {
    apply(c, latent, tokens, c.shape.rows());
  }
  void tokens_backward(const LayerCall& c, const float* latent, const float* dtokens, float* dlatent, float* dw) const override {
    differentiate(c, latent, dtokens, dlatent, dw, c.shape.rows());
  }
};

class ToyHead : public ScaleShift<Head> {
 public:
  using ScaleShift::ScaleShift;
  int64_t saved_bytes(const BatchShape&, DType) const override { return 0; }
  void forward(const LayerCall& c, const float* tokens, const float*, float* out, void*) const override { apply(c, tokens, out, c.shape.rows()); }
  void backward(const LayerCall& c, const float* tokens, const float*, const void*, const float* dout, float* dtokens, float*, float* dw) const override {
    differentiate(c, tokens, dout, dtokens, dw, c.shape.rows());
  }
};

inline Network toy_network(int64_t width, int layers) {
  Network n;
  n.embedding = std::make_unique<ToyEmbedding>(width);
  for (int i = 0; i < layers; ++i) n.layers.push_back(std::make_unique<ToyLayer>(width));
  n.head = std::make_unique<ToyHead>(width);
  n.width = n.in_channels = n.out_channels = width;
  n.text_width = 1;
  n.patch_height = n.patch_width = 1;
  return n;
}

// Deterministic start: scales near 1, shifts near 0.
inline void fill_toy(HostStore& store) {
  ThreadPool pool(1);
  for (int m = 0; m < store.modules(); ++m) {
    const auto& layout = store.module(m).module->layout();
    std::vector<float> p(static_cast<size_t>(layout.elements), 0);
    for (size_t i = 0; i < p.size(); ++i) p[i] = 0.8f + 0.01f * static_cast<float>((i * 7 + static_cast<size_t>(m) * 13) % 41);
    store.change_module(m, [&](ModuleState&) { store.write_master(pool, m, 0, layout.elements, p.data()); });
  }
}

// A batch of random numbers for it.
struct ToyInputs {
  BatchShape shape;
  std::vector<float> latent, target, timestep{500}, text{0};
  ToyInputs(int64_t width, const BatchShape& grid, uint64_t series) : shape(grid) {
    const Random random(7, RandomPurpose::kTest);
    for (int64_t i = 0; i < shape.rows() * width; ++i) {
      latent.push_back(static_cast<float>(random.normal(series, static_cast<uint64_t>(i))));
      target.push_back(static_cast<float>(random.normal(series + 1000, static_cast<uint64_t>(i))));
    }
  }
  MicroBatch batch() const { return {shape, latent.data(), timestep.data(), text.data(), target.data()}; }
};

}  // namespace megaslide::testing
