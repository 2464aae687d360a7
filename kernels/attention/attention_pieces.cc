#include "kernels/attention/attention_pieces.h"

#include <algorithm>
#include <vector>

#include "kernels/attention/scratch.h"
#include "kernels/attention/window_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_pieces.cc"
#include "kernels/simd_targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/attention/head-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megaslide {
namespace HWY_NAMESPACE {
namespace {

// Where a head's rows start in the (B,N,heads,d) and (B,M,heads,d) tensors.
struct HeadStarts {
  HeadStarts(const AttentionShape& s, int64_t batch, int64_t head)
      : stride(s.heads * s.head_dim), q(batch * s.queries * stride + head * s.head_dim),
        k(batch * s.keys * stride + head * s.head_dim), lse(batch * s.queries * s.heads + head) {}
  int64_t stride, q, k, lse;
};

template <class T, class Args>
HeadInput<T> InputOf(const Args& a, const HeadStarts& x) {
  const AttentionShape& s = a.shape;
  return {static_cast<const T*>(a.q) + x.q, static_cast<const T*>(a.k) + x.k, static_cast<const T*>(a.v) + x.k,
          x.stride, x.stride, s.queries, s.keys, s.head_dim, s.scale};
}

template <class T>
void Forward(const AttentionArgs& a, int64_t batch, int64_t head, int64_t tile) {
  const HeadStarts x(a.shape, batch, head);
  ForwardQueries(InputOf<T>(a, x), tile * kQueryTile, std::min((tile + 1) * kQueryTile, a.shape.queries),
                 {a.out + x.q, a.lse + x.lse, a.shape.heads});
}
void ForwardPiece(const AttentionArgs& a, int64_t batch, int64_t head, int64_t tile) {
  static_assert(kQueryTile == kAttentionQueryTile);
  a.dtype == DType::kBF16 ? Forward<bf16>(a, batch, head, tile) : Forward<float>(a, batch, head, tile);
}

template <class T>
void Backward(const AttentionGradientArgs& a, int64_t batch, int64_t head) {
  const HeadStarts x(a.shape, batch, head);
  BackwardHead(InputOf<T>(a, x), {a.dq + x.q, a.dk + x.k, a.dv + x.k, a.out + x.q, a.lse + x.lse, a.dout + x.q, a.shape.heads});
}
void BackwardPiece(const AttentionGradientArgs& a, int64_t batch, int64_t head) {
  a.dtype == DType::kBF16 ? Backward<bf16>(a, batch, head) : Backward<float>(a, batch, head);
}

// The tokens of one window, as runs along w.
class Window {
 public:
  Window(const WindowShape& s, int64_t batch, int64_t head, int64_t index)
      : s_(s), batch_(batch), head_(head), groups_(s), t_(index / groups_.w.groups() / groups_.h.groups()),
        h_(index / groups_.w.groups() % groups_.h.groups()), w_(index % groups_.w.groups()) {}
  int64_t tokens() const {
    return (groups_.t.end(t_) - groups_.t.begin(t_)) * (groups_.h.end(h_) - groups_.h.begin(h_)) *
           (groups_.w.end(w_) - groups_.w.begin(w_));
  }
  // body(place within the window, row offset in (B,N,heads,d), offset in (B,N,heads))
  template <class F>
  HWY_INLINE void Each(F body) const {
    int64_t i = 0;
    for (int64_t t = groups_.t.begin(t_); t < groups_.t.end(t_); ++t)
      for (int64_t h = groups_.h.begin(h_); h < groups_.h.end(h_); ++h)
        for (int64_t w = groups_.w.begin(w_); w < groups_.w.end(w_); ++w, ++i) {
          const int64_t row = (batch_ * s_.tokens() + (t * s_.height + h) * s_.width + w) * s_.heads + head_;
          body(i, row * s_.head_dim, row);
        }
  }

 private:
  const WindowShape& s_;
  int64_t batch_, head_;
  WindowGroups groups_;
  int64_t t_, h_, w_;
};

// A window's tensors in fp32, (tokens, d) each; owned apart from ThreadScratch, which the head functions use.
struct WindowTensors {
  WindowTensors(int64_t tokens, int64_t d, int64_t count)
      : n(tokens * d), memory(static_cast<size_t>(count * n + 2 * tokens)), vector(memory.data() + count * n) {}
  float* at(int64_t i) { return memory.data() + i * n; }
  int64_t n;
  std::vector<float> memory;
  float* vector;  // (tokens): lse
};

template <class T>
void Gather(const Window& w, WindowTensors& x, int64_t d, const void* q, const void* k, const void* v) {
  w.Each([&](int64_t i, int64_t row, int64_t) {
    Widen(x.at(0) + i * d, static_cast<const T*>(q) + row, d);
    Widen(x.at(1) + i * d, static_cast<const T*>(k) + row, d);
    Widen(x.at(2) + i * d, static_cast<const T*>(v) + row, d);
  });
}
void GatherAny(DType dtype, const Window& w, WindowTensors& x, int64_t d, const void* q, const void* k, const void* v) {
  dtype == DType::kBF16 ? Gather<bf16>(w, x, d, q, k, v) : Gather<float>(w, x, d, q, k, v);
}
HeadInput<float> WindowInput(WindowTensors& x, const WindowShape& s, int64_t tokens) {
  return {x.at(0), x.at(1), x.at(2), s.head_dim, s.head_dim, tokens, tokens, s.head_dim, s.scale};
}

void WindowForwardPiece(const WindowArgs& a, int64_t batch, int64_t head, int64_t window) {
  const Window w(a.shape, batch, head, window);
  const int64_t d = a.shape.head_dim, n = w.tokens();
  WindowTensors x(n, d, 4);
  GatherAny(a.dtype, w, x, d, a.q, a.k, a.v);
  const auto in = WindowInput(x, a.shape, n);
  for (int64_t i = 0; i < n; i += kQueryTile) ForwardQueries(in, i, std::min(i + kQueryTile, n), {x.at(3), x.vector, 1});
  w.Each([&](int64_t i, int64_t row, int64_t lse) {
    std::copy(x.at(3) + i * d, x.at(3) + (i + 1) * d, a.out + row);
    a.lse[lse] = x.vector[i];
  });
}

void WindowBackwardPiece(const WindowGradientArgs& a, int64_t batch, int64_t head, int64_t window) {
  const Window w(a.shape, batch, head, window);
  const int64_t d = a.shape.head_dim, n = w.tokens();
  WindowTensors x(n, d, 8);
  GatherAny(a.dtype, w, x, d, a.q, a.k, a.v);
  w.Each([&](int64_t i, int64_t row, int64_t lse) {
    std::copy(a.out + row, a.out + row + d, x.at(3) + i * d);
    std::copy(a.dout + row, a.dout + row + d, x.at(4) + i * d);
    x.vector[i] = a.lse[lse];
  });
  BackwardHead(WindowInput(x, a.shape, n), {x.at(5), x.at(6), x.at(7), x.at(3), x.vector, x.at(4), 1});
  w.Each([&](int64_t i, int64_t row, int64_t) {
    std::copy(x.at(5) + i * d, x.at(5) + (i + 1) * d, a.dq + row);
    std::copy(x.at(6) + i * d, x.at(6) + (i + 1) * d, a.dk + row);
    std::copy(x.at(7) + i * d, x.at(7) + (i + 1) * d, a.dv + row);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace megaslide
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megaslide {
HWY_EXPORT(ForwardPiece);
HWY_EXPORT(BackwardPiece);
HWY_EXPORT(WindowForwardPiece);
HWY_EXPORT(WindowBackwardPiece);

void attention_forward_piece(const AttentionArgs& a, int64_t batch, int64_t head, int64_t tile) {
  HWY_DYNAMIC_DISPATCH(ForwardPiece)(a, batch, head, tile);
}
void attention_backward_piece(const AttentionGradientArgs& a, int64_t batch, int64_t head) {
  HWY_DYNAMIC_DISPATCH(BackwardPiece)(a, batch, head);
}
void window_forward_piece(const WindowArgs& a, int64_t batch, int64_t head, int64_t window) {
  HWY_DYNAMIC_DISPATCH(WindowForwardPiece)(a, batch, head, window);
}
void window_backward_piece(const WindowGradientArgs& a, int64_t batch, int64_t head, int64_t window) {
  HWY_DYNAMIC_DISPATCH(WindowBackwardPiece)(a, batch, head, window);
}

}  // namespace megaslide
#endif  // HWY_ONCE
