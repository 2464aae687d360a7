// A piece of a network: named parameters, forward and backward. Layers see device pointers and a stream, never the
// host store; the engine that streams them (stream/pipeline.h) sees this interface, never what is inside.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/stream.h"
#include "tensor/tensor.h"

namespace megaslide {

enum class ParamInit { kNormal, kXavierUniform, kZeros, kOnes, kLastOnes };

struct ParamSpec {
  std::string name;  // diffusers name relative to the layer ("attn1.to_q.weight")
  Shape shape;
  ParamInit init = ParamInit::kXavierUniform;
  // Standard deviation for kNormal, gain for kXavierUniform, share (rounded up) of the elements that are 1 for kLastOnes.
  double init_scale = 1.0;
  double learning_rate_scale = 1;  // of the parameter's group
  bool decay = true;               // takes part in weight decay
};

// Where each parameter starts in a slab of elements: the same layout for weights, masters, moments and gradients.
// Starts are multiples of 64 elements; the gaps hold zeros and stay zero under the optimizer.
struct ParamLayout {
  explicit ParamLayout(const std::vector<ParamSpec>& params);
  ParamLayout() = default;
  std::vector<int64_t> offset;  // elements, one a parameter
  int64_t elements = 0;         // of the slab, a multiple of 64
  int64_t parameters = 0;       // without gaps
};

struct FrameRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

// Token grid and sizes of one microbatch, or of one call where a clip goes through the layers slab by slab.
struct BatchShape {
  int64_t batch = 1;
  int64_t frames = 1, height = 1, width = 1;  // of the token grid (T, H, W)
  int64_t context_rows = 0;                   // text rows S
  int64_t times = 1;                          // timesteps a sample: 1, or one a latent frame (spec wan.md A.13)
  // A slab (spec engine.md §3): the grid is what a call sees of a clip of one sample, frames first_frame … first_frame +
  // frames − 1, and `own` are those that it computes, counted from first_frame on. clip_frames 0: a whole clip, all its own.
  int64_t clip_frames = 0, first_frame = 0;
  int64_t own_begin = 0, own_frames = 0;
  int64_t tokens() const { return frames * height * width; }  // a sample
  int64_t rows() const { return batch * tokens(); }
  int64_t timesteps() const { return batch * times; }
  int64_t rows_a_timestep() const { return tokens() / times; }
  int64_t own_first_row() const { return own_begin * height * width; }
  int64_t own_first_timestep() const { return times == 1 ? 0 : own_begin; }
  // What the call computes, as a shape of its own.
  BatchShape own() const;
  // The slab of a sample of this clip that sees `seen` and computes `own`.
  BatchShape slab(FrameRange seen, FrameRange own) const;
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

// A stack of temporaries in device memory, used by the compute stream alone: what is popped may be reused at once,
// since the stream runs in order. A dry workspace (base nullptr, capacity 0) only measures: what it hands out is no memory.
class Workspace {
 public:
  Workspace() = default;
  Workspace(void* base, int64_t capacity) : base_(static_cast<std::byte*>(base)), capacity_(capacity) {}
  // n elements of T, 256-byte aligned.
  template <class T>
  T* take(int64_t n) { return static_cast<T*>(take_bytes(n * static_cast<int64_t>(sizeof(T)))); }
  void* take_bytes(int64_t bytes);
  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }
  int64_t high_water() const { return high_; }

 private:
  std::byte* base_ = nullptr;
  int64_t capacity_ = 0, used_ = 0, high_ = 0;
};

// Releases on scope exit what was taken inside.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(Workspace& w) : workspace_(w), mark_(w.mark()) {}
  ~WorkspaceScope() { workspace_.release(mark_); }
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;

 private:
  Workspace& workspace_;
  int64_t mark_;
};

// What every layer of a diffusion transformer reads beside its input. Device pointers, fp32.
struct Conditioning {
  const float* context = nullptr;     // (B, S, D) projected text
  const float* modulation = nullptr;  // (B·times, 6, D) time projection e0
  float* dcontext = nullptr;          // gradients, accumulated over all layers
  float* dmodulation = nullptr;
};

// Everything a call needs besides its tensors.
struct LayerCall {
  Stream& stream;
  Workspace& workspace;
  BatchShape shape;
  DType compute_dtype;          // kBF16 or kF32: type of `weights` and of GEMM operands
  const void* weights = nullptr;  // slab in ParamLayout order, compute_dtype elements
  const void* packed = nullptr;   // what pack() made of it
  // Device memory, (B, T): first and last frame of each frame's shot, beyond which deformable attention does not look.
  // nullptr: one shot.
  const int32_t* t_lo = nullptr;
  const int32_t* t_hi = nullptr;
  // Device memory, (B, N, T, 2): where each token is known to go until each frame, (h, w) in tokens; of networks that
  // need it.
  const float* displacement = nullptr;
};

// Parameters and their packing; the common part of blocks, embeddings and heads.
class Module {
 public:
  virtual ~Module() = default;
  virtual const std::vector<ParamSpec>& params() const = 0;
  virtual const ParamLayout& layout() const = 0;
  // Bytes that pack() fills. Matrix weights are re-laid for the GEMM once a load, not once a call.
  virtual int64_t packed_bytes(DType compute_dtype, bool training) const = 0;
  // Queues the packing of a slab: for the forward products, and for the input-gradient products when `training`.
  virtual void pack(Stream& stream, DType compute_dtype, bool training, const void* weights, void* packed) const = 0;
};

// A block: rows in, rows out, the residual stream in fp32. One of a network that is only evaluated is no more than this.
class ForwardLayer : public Module {
 public:
  // x (B·N, D), y: (B·N, D), of a slab its own rows; fp32, not aliased. `saved` may be nullptr: then nothing is kept.
  virtual void forward(const LayerCall& call, const Conditioning& conditioning, const float* x, float* y, void* saved) const = 0;
};

// A block that can be trained.
class Layer : public ForwardLayer {
 public:
  // Bytes of `saved` for a shape: what forward leaves for backward.
  virtual int64_t saved_bytes(const BatchShape& shape, DType compute_dtype) const = 0;

  // dy: gradient at y. dx is overwritten (may alias dy but for a slab, whose dx is that of all rows it sees: the sum over
  // the slabs of a clip is the gradient). dweights: fp32 slab in ParamLayout order, accumulated.
  // conditioning.dcontext and dmodulation are accumulated.
  virtual void backward(const LayerCall& call, const Conditioning& conditioning, const float* x, const void* saved,
                        const float* dy, float* dx, float* dweights) const = 0;

  // The frames of a clip that a call has to see to compute `own`; growing with it at both ends. nullopt: the layer cannot
  // compute a part of a clip.
  virtual std::optional<FrameRange> sees(int64_t clip_frames, FrameRange own) const = 0;
};

// The resident ends of a network. Pointers are device memory, fp32; (B, …) row-major.
class Embedding : public Module {
 public:
  // What all layers read: timesteps (B, times) on the 0..1000 scale, text (B, S, text_dim), zero rows past the prompt
  //   → context (B, S, D), time (B·times, D) e, modulation (B·times, 6, D) e0.
  virtual int64_t saved_bytes(const BatchShape& shape, DType compute_dtype) const = 0;
  virtual void conditioning_forward(const LayerCall& call, const float* timesteps, const float* text, float* context, float* time,
                                    float* modulation, void* saved) const = 0;
  // dtime, dmodulation and dcontext are consumed (may be overwritten). dtext may be nullptr; overwritten.
  virtual void conditioning_backward(const LayerCall& call, const float* text, const void* saved, float* dcontext, float* dtime,
                                     float* dmodulation, float* dtext, float* dweights) const = 0;
  // latent (B, Cin, T, h, w) → tokens (B·N, D).
  virtual void tokens_forward(const LayerCall& call, const float* latent, float* tokens) const = 0;
  // dlatent may be nullptr; overwritten.
  virtual void tokens_backward(const LayerCall& call, const float* latent, const float* dtokens, float* dlatent, float* dweights) const = 0;
};

class Head : public Module {
 public:
  virtual int64_t saved_bytes(const BatchShape& shape, DType compute_dtype) const = 0;
  // tokens (B·N, D), time (B·times, D) → out (B, Cout, T, h, w), the velocity.
  virtual void forward(const LayerCall& call, const float* tokens, const float* time, float* out, void* saved) const = 0;
  // dtokens overwritten; dtime accumulated; dweights accumulated.
  virtual void backward(const LayerCall& call, const float* tokens, const float* time, const void* saved,
                        const float* dout, float* dtokens, float* dtime, float* dweights) const = 0;
};

// A whole network as the engine sees it.
struct Network {
  std::unique_ptr<Embedding> embedding;
  std::vector<std::unique_ptr<Layer>> layers;
  std::unique_ptr<Head> head;
  int64_t width = 0;         // D
  int64_t text_width = 0;    // text_dim
  int64_t in_channels = 0, out_channels = 0;
  int64_t patch_height = 2, patch_width = 2;
  bool needs_displacement = false;
};

}  // namespace megaslide
