// C entry points for compare_dit.py: a stack of Wan blocks.
#include "bench/block_stack.h"

using namespace megaslide;

extern "C" {

// bf16 != 0: bf16 weights and operands, else fp32.
void* ms_stack(int layers, int dim, int heads, int ffn_dim, int frames, int height, int width, int text, int bf16,
               int threads) {
  ModelConfig c;
  c.layers = layers, c.dim = dim, c.heads = heads, c.ffn_dim = ffn_dim;
  const BatchShape shape{.batch = 1, .frames = frames, .height = height, .width = width, .context_rows = text};
  return new bench::BlockStack(c, shape, bf16 ? DType::kBF16 : DType::kF32, threads);
}
void ms_stack_set(void* stack, int layer, const char* name, const void* values) {
  static_cast<bench::BlockStack*>(stack)->set_parameter(layer, name, values);
}
void ms_stack_pack(void* stack, int training) { static_cast<bench::BlockStack*>(stack)->pack(training != 0); }
void ms_stack_infer(void* stack, const float* x, const float* context, const float* modulation, float* y) {
  static_cast<bench::BlockStack*>(stack)->infer(x, context, modulation, y);
}
void ms_stack_train(void* stack, const float* x, const float* context, const float* modulation, const float* dy,
                    float* y, float* dx) {
  static_cast<bench::BlockStack*>(stack)->train(x, context, modulation, dy, y, dx);
}
const float* ms_stack_gradient(void* stack, int layer, const char* name) {
  return static_cast<bench::BlockStack*>(stack)->gradient(layer, name, nullptr);
}
}
