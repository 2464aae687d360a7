// C entry points for compare_adamw.py.
#include <memory>

#include "kernels/adamw/adamw.h"

using namespace megaslide;

extern "C" {

void* ms_pool(int threads) { return new ThreadPool(threads); }

// p, m, v fp32 in place; the gradient fp32: the streams of torch.optim.AdamW.
void ms_adamw_fp32(void* pool, float* p, float* m, float* v, const float* g, int64_t n, double learning_rate,
                   double decay, int64_t step) {
  AdamWStep s;
  s.learning_rate = learning_rate;
  s.weight_decay = decay;
  s.step = step;
  adamw_update_fp32(*static_cast<ThreadPool*>(pool), p, nullptr, m, v, g, DType::kF32, n, s);
}

// bf16 weight, 16-bit remainder, bf16 gradient: what `finetune` runs by default.
void ms_adamw_split(void* pool, void* w, int16_t* r, float* m, float* v, const void* g, int64_t n, double learning_rate,
                    double decay, int64_t step) {
  AdamWStep s;
  s.learning_rate = learning_rate;
  s.weight_decay = decay;
  s.step = step;
  adamw_update_split(*static_cast<ThreadPool*>(pool), static_cast<bf16*>(w), r, m, v, g, DType::kBF16, n, s);
}
}
