// What the parts of the Wan transformer share: parameters with their layout, packed matrices, and a view of one call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/memory/memory.h"
#include "model/layer.h"

namespace megaslide {

// A linear layer among a module's parameters: y = x·Wᵀ + b, or without b where `bias` is kNoBias.
inline constexpr size_t kNoBias = static_cast<size_t>(-1);
struct WanMatrix {
  size_t weight, bias;  // parameter indices
  int64_t outputs, inputs;
};

// Where each packed matrix lies: all of them for the forward products, then all for the input gradients.
class WanPacking {
 public:
  WanPacking() = default;
  // The first `fp8` matrices are packed for forward products in 8 bits where the compute dtype is bf16 (kernels/gemm_fp8).
  explicit WanPacking(std::vector<WanMatrix> matrices, size_t fp8 = 0);
  int64_t bytes(DType dtype, bool training) const;
  void pack(Stream& stream, DType dtype, bool training, const ParamLayout& layout, const void* weights,
            void* packed) const;
  const WanMatrix& matrix(size_t i) const { return matrices_[i]; }
  bool in_fp8(size_t i, DType dtype) const { return dtype == DType::kBF16 && i < fp8_; }
  int64_t offset(size_t i, DType dtype, PackFor pack_for) const {
    return table(dtype)[pack_for == PackFor::kForward ? i : matrices_.size() + i];
  }

 private:
  const std::vector<int64_t>& table(DType dtype) const { return dtype == DType::kBF16 ? bf16_ : f32_; }
  std::vector<WanMatrix> matrices_;
  size_t fp8_ = 0;
  std::vector<int64_t> bf16_, f32_;  // starts in bytes, and the end
};

// Parameters of a Layer, an Embedding or a Head.
template <class Base>
class WanModule : public Base {
 public:
  WanModule(std::vector<ParamSpec> params, std::vector<WanMatrix> matrices, size_t fp8_matrices = 0)
      : params_(std::move(params)), layout_(params_), packing_(std::move(matrices), fp8_matrices) {}
  const std::vector<ParamSpec>& params() const final { return params_; }
  const ParamLayout& layout() const final { return layout_; }
  int64_t packed_bytes(DType dtype, bool training) const final { return packing_.bytes(dtype, training); }
  void pack(Stream& stream, DType dtype, bool training, const void* weights, void* packed) const final {
    packing_.pack(stream, dtype, training, layout_, weights, packed);
  }

 protected:
  const WanPacking& packing() const { return packing_; }

 private:
  std::vector<ParamSpec> params_;
  ParamLayout layout_;
  WanPacking packing_;
};

// One call of a module: its weights, and its products with operands in the call's compute dtype.
class WanCall {
 public:
  WanCall(const LayerCall& call, const ParamLayout& layout, const WanPacking& packing, float* dweights = nullptr)
      : stream(call.stream),
        workspace(call.workspace),
        shape(call.shape),
        dtype(call.compute_dtype),
        t_lo(call.t_lo),
        t_hi(call.t_hi),
        displacement(call.displacement),
        call_(call),
        layout_(layout),
        packing_(packing),
        dweights_(dweights) {}

  Stream& stream;
  Workspace& workspace;
  const BatchShape& shape;
  const DType dtype;
  const int32_t *const t_lo, *const t_hi;  // of the LayerCall
  const float* const displacement;

  const void* weight(size_t param) const {
    return static_cast<const std::byte*>(call_.weights) + layout_.offset[param] * dtype_bytes(dtype);
  }
  float* gradient(size_t param) const { return dweights_ + layout_.offset[param]; }
  int64_t offset(size_t param) const { return layout_.offset[param]; }

  // y (rows, outputs) fp32 = x (rows, inputs)·Wᵀ + b.
  void linear(size_t matrix, float* y, const void* x, int64_t rows) const;
  // The same as an operand.
  void linear_operand(size_t matrix, void* y, const void* x, int64_t rows) const;
  // activation = gelu of it, both operands; kept may be nullptr.
  void linear_gelu(size_t matrix, void* activation, void* kept, const void* x, int64_t rows) const;
  // y = residual + gate ⊙ it, which is kept as an operand unless nullptr; no gate is 1 (kernels/gemm).
  void linear_gated_add(size_t matrix, float* y, void* kept, const float* residual, const float* gate, const void* x,
                        int64_t rows, int64_t first_row, int64_t group_rows, int64_t group_stride) const;
  // dx (rows, inputs) fp32 = or += dy (rows, outputs)·W.
  void input_gradient(size_t matrix, float* dx, const void* dy, int64_t rows, bool accumulate = false) const;
  // Through the matrix and the GELU before it: dx = (dy·W) ⊙ gelu'(kept) and activation = gelu(kept) as operands, and the
  // gradient of the bias inside the GELU. scratch: gelu_scratch floats.
  void gelu_gradient(size_t matrix, void* dx, void* activation, float* dbias, float* scratch, const void* dy,
                     const void* kept, int64_t rows) const;
  // dW += dyᵀ·x; the bias has its own sum.
  void weight_gradient(size_t matrix, const void* dy, const void* x, int64_t rows) const;
  // db += Σ dy, dy fp32.
  void bias_sum(size_t matrix, const float* dy, int64_t rows) const;

  // n elements of the compute dtype.
  void* take_operand(int64_t n) const { return workspace.take_bytes(n * dtype_bytes(dtype)); }
  // x as an operand: itself in fp32, a rounded copy in the workspace otherwise.
  const void* operand(const float* x, int64_t n) const;
  // The vectors from parameter `first` up to `end` in fp32: in place, or a widened copy; index with offset(p) −
  // offset(first).
  const float* vectors(size_t first, size_t end) const;
  // Zeros in the rows that a slab sees beside its own.
  void clear_beside_own(void* rows, int64_t row_bytes) const;
  const void* at(const void* operand, int64_t elements) const {
    return static_cast<const std::byte*>(operand) + elements * dtype_bytes(dtype);
  }
  void* at(void* operand, int64_t elements) const {
    return static_cast<std::byte*>(operand) + elements * dtype_bytes(dtype);
  }

 private:
  const void* packed(size_t matrix, PackFor pack_for) const {
    return static_cast<const std::byte*>(call_.packed) + packing_.offset(matrix, dtype, pack_for);
  }

  // x as operand of a product in 8 bits, in the workspace.
  const void* quantized(const void* x, int64_t n) const;
  // body(first row, rows, their x·Wᵀ + b in fp32) for runs of rows that end where groups do, by 8-bit products.
  template <class F>
  void fp8_runs(size_t matrix, const void* x, int64_t rows, int64_t first_row, int64_t group_rows, F body) const;

  const LayerCall& call_;
  const ParamLayout& layout_;
  const WanPacking& packing_;
  float* dweights_;
};

}  // namespace megaslide
