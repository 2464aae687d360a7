// C entry points for compare_adamw.py.
#include <memory>

#include "kernels/adamw/adamw.h"

using namespace megaslide;

extern "C" {

void* ms_pool(int threads) { return new ThreadPool(threads); }

// Arrays as in AdamWState, gradient of BF16 where bf16_gradient is not 0. masters and moments: the codecs' numbers.
void ms_adamw(void* pool, int masters, int moments, float* p, void* w, int16_t* r, void* m, void* v, float* m_scale,
              float* v_scale, const void* g, int bf16_gradient, int64_t n, double learning_rate, double decay,
              int64_t step) {
  AdamWState state;
  state.masters = static_cast<MasterCodec>(masters);
  state.moments = static_cast<MomentCodec>(moments);
  state.p = p;
  state.w = static_cast<bf16*>(w);
  state.r = r;
  state.m = m;
  state.v = v;
  state.m_scale = m_scale;
  state.v_scale = v_scale;
  AdamWStep s;
  s.learning_rate = learning_rate;
  s.weight_decay = decay;
  s.step = step;
  adamw_update(*static_cast<ThreadPool*>(pool), state, g, bf16_gradient ? DType::kBF16 : DType::kF32, n, s);
}
}
