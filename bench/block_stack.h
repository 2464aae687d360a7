// A stack of Wan blocks on heap memory, run as the streaming engine runs it: forward without keeping anything, then
// layer by layer backwards, each recomputed first. For benchmarks.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "model/wan_block.h"

namespace megaslide::bench {

// Runs everything at once and counts the seconds of each kernel by name.
class ProfilingStream final : public Stream {
 public:
  explicit ProfilingStream(int threads) : pool_(threads) {}
  Backend backend() const override { return Backend::kCpu; }
  void enqueue(const char* name, const Cost& cost, std::function<void()> work) override;
  ThreadPool& pool() override { return pool_; }

  struct Entry {
    double seconds = 0, flops = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Entry> profile;

 private:
  ThreadPool pool_;
};

class BlockStack {
 public:
  BlockStack(const ModelConfig& config, const BatchShape& shape, DType dtype, int threads);

  // The parameter of a block by its diffusers name, row-major elements of the dtype.
  void set_parameter(int64_t layer, const std::string& name, const void* values);
  void fill_random();
  void pack(bool training);  // after parameters have changed

  // x, y (rows, D), context (B, S, D), modulation (B, 6, D), fp32.
  void infer(const float* x, const float* context, const float* modulation, float* y);
  // dy = the gradient at y; dx, and gradients of all parameters (accumulated from 0).
  void train(const float* x, const float* context, const float* modulation, const float* dy, float* y, float* dx);
  const float* gradient(int64_t layer, const std::string& name, int64_t* count) const;

  const BatchShape& shape() const { return shape_; }
  int64_t width() const { return width_; }
  ProfilingStream& stream() { return stream_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  struct Block {
    std::unique_ptr<WanBlock> block;
    Memory weights, packed, gradients, input;
  };
  static Memory memory(int64_t bytes);
  size_t index_of(const Block& b, const std::string& name) const;
  LayerCall call(const Block& b, Workspace& w);

  BatchShape shape_;
  DType dtype_;
  int64_t width_;
  ProfilingStream stream_;
  std::vector<Block> blocks_;
  Memory saved_, recomputed_, workspace_, dcontext_, dmodulation_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace megaslide::bench
