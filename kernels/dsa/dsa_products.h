// The products of kernel B of one head, whatever the element type and the processor's unit.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/dsa/dsa_tile.h"
#include "kernels/dsa/dsa_vector.h"
#include "kernels/tile/unit.h"

namespace megaslide {

// Operands of queries are 32 rows of width() numbers of bytes() each; tensors point to the first number of the head.
// Planes of keys are packed one at a time: for scores, or for weigh.
class DsaProducts {
 public:
  explicit DsaProducts(const DsaShape& s) : d_(s.head_dim), stride_(s.row()) {}
  virtual ~DsaProducts() = default;
  virtual int64_t width() const = 0;
  virtual int64_t bytes() const = 0;
  virtual int64_t scratch(const DsaHalo& h) const = 0;
  virtual bool packs_alike() const = 0;  // both packings are the same
  int64_t plane_bytes(const DsaHalo& h) const { return dsa_plane_keys(h) * width() * bytes(); }
  virtual void pack_keys(void* plane, const void* tensor, const DsaHalo& h, int64_t index) const = 0;
  virtual void pack_values(void* plane, const void* tensor, const DsaHalo& h, int64_t index) const = 0;
  virtual void row(void* a, const void* x) const = 0;                                   // a row of q
  virtual float gradient_row(void* a, const float* dout, const float* out) const = 0;  // returns Σ dO·O
  virtual void scores(float* scores, const void* a, const DsaTile& t, const void* const* planes, void* scratch) const = 0;
  virtual void weigh(float* result, const float* weights, const DsaTile& t, const void* const* planes,
                     void* scratch) const = 0;
  virtual void columns(void* b, const void* a) const = 0;  // a as the right operand of outer
  // Weights of one plane as outer reads them, for `count` tiles one behind the other, as their operands b.
  int64_t kept_bytes(const DsaHalo& h) const { return dsa_plane_keys(h) * kDsaTileQueries * bytes(); }
  virtual void keep(void* kept, const float* weights, const DsaTile& t) const = 0;
  virtual void outer(float* sums, const void* kept, const void* b, int64_t count, const DsaHalo& h,
                     bool accumulate) const = 0;

 protected:
  int64_t d_, stride_;
};

class DsaUnitProducts final : public DsaProducts {
 public:
  DsaUnitProducts(const DsaShape& s, TileUnit unit) : DsaProducts(s), unit_(unit) {}
  int64_t width() const override { return (d_ + 31) / 32 * 32; }
  int64_t bytes() const override { return 2; }
  int64_t scratch(const DsaHalo& h) const override { return dsa_bf16_scratch(h); }
  bool packs_alike() const override { return false; }
  void pack_keys(void* plane, const void* tensor, const DsaHalo& h, int64_t index) const override {
    dsa_bf16_pack_keys(static_cast<uint16_t*>(plane), static_cast<const uint16_t*>(tensor), stride_, d_, h, index);
  }
  void pack_values(void* plane, const void* tensor, const DsaHalo& h, int64_t index) const override {
    dsa_bf16_pack_values(static_cast<uint16_t*>(plane), static_cast<const uint16_t*>(tensor), stride_, d_, h, index);
  }
  void row(void* a, const void* x) const override {
    auto* to = static_cast<uint16_t*>(a);
    std::copy_n(static_cast<const uint16_t*>(x), d_, to);
    std::fill(to + d_, to + width(), uint16_t{0});
  }
  float gradient_row(void* a, const float* dout, const float* out) const override {
    return dsa_bf16_round(static_cast<uint16_t*>(a), dout, out, d_, width());
  }
  void scores(float* scores, const void* a, const DsaTile& t, const void* const* planes, void*) const override {
    dsa_bf16_scores(unit_, scores, t.row, t.lanes, static_cast<const uint16_t*>(a), planes, d_, t.halo);
  }
  void weigh(float* result, const float* weights, const DsaTile& t, const void* const* planes,
             void* scratch) const override {
    dsa_bf16_weigh(unit_, result, weights, t.row, t.lanes, planes, d_, t.halo, scratch);
  }
  void columns(void* b, const void* a) const override {
    dsa_bf16_columns(static_cast<uint16_t*>(b), static_cast<const uint16_t*>(a), width());
  }
  void keep(void* kept, const float* weights, const DsaTile& t) const override {
    dsa_bf16_keep(static_cast<uint16_t*>(kept), weights, t.row, t.halo);
  }
  void outer(float* sums, const void* kept, const void* b, int64_t count, const DsaHalo& h, bool accumulate) const override {
    dsa_bf16_outer(unit_, sums, static_cast<const uint16_t*>(kept), static_cast<const uint16_t*>(b), count, d_, h,
                   accumulate);
  }

 private:
  TileUnit unit_;
};

class DsaVectorProducts final : public DsaProducts {
 public:
  DsaVectorProducts(const DsaShape& s, DType dtype) : DsaProducts(s), dtype_(dtype) {}
  int64_t width() const override { return (d_ + 15) / 16 * 16; }
  int64_t bytes() const override { return 4; }
  int64_t scratch(const DsaHalo& h) const override { return dsa_vector_scratch(h, width()); }
  bool packs_alike() const override { return true; }
  void pack_keys(void* plane, const void* tensor, const DsaHalo& h, int64_t index) const override {
    dsa_vector_pack(static_cast<float*>(plane), tensor, stride_, d_, h, index, dtype_);
  }
  void pack_values(void* plane, const void* tensor, const DsaHalo& h, int64_t index) const override {
    pack_keys(plane, tensor, h, index);
  }
  void row(void* a, const void* x) const override { dsa_vector_widen(static_cast<float*>(a), x, d_, width(), dtype_); }
  float gradient_row(void* a, const float* dout, const float* out) const override {
    dsa_vector_widen(static_cast<float*>(a), dout, d_, width(), DType::kF32);
    return dsa_vector_dot(dout, out, d_);
  }
  void scores(float* scores, const void* a, const DsaTile& t, const void* const* planes, void* scratch) const override {
    dsa_vector_scores(scores, t.row, t.lanes, static_cast<const float*>(a), planes, d_, t.halo, scratch);
  }
  void weigh(float* result, const float* weights, const DsaTile& t, const void* const* planes, void*) const override {
    dsa_vector_weigh(result, weights, t.row, t.lanes, planes, d_, t.halo);
  }
  void columns(void* b, const void* a) const override {
    std::memcpy(b, a, static_cast<size_t>(4 * kDsaTileQueries * width()));
  }
  void keep(void* kept, const float* weights, const DsaTile& t) const override {
    dsa_vector_keep(static_cast<float*>(kept), weights, t.row, t.halo);
  }
  void outer(float* sums, const void* kept, const void* b, int64_t count, const DsaHalo& h, bool accumulate) const override {
    dsa_vector_outer(sums, static_cast<const float*>(kept), static_cast<const float*>(b), count, d_, h, accumulate);
  }

 private:
  DType dtype_;
};

// body(products) with those of this type and processor.
template <class F>
auto with_dsa_products(const DsaShape& s, DType dtype, F body) {
  const TileUnit unit = tile_unit();
  if (dtype == DType::kBF16 && unit != TileUnit::kNone) return body(DsaUnitProducts(s, unit));
  return body(DsaVectorProducts(s, dtype));
}

}  // namespace megaslide
