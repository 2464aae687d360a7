#include "bench/block_stack.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "base/philox.h"

namespace megaslide::bench {

void ProfilingStream::enqueue(const char* name, const Cost& cost, std::function<void()> work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  Entry& e = profile[name];
  e.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  e.flops += cost.flops;
  ++e.calls;
}

BlockStack::Memory BlockStack::memory(int64_t bytes) {
  const size_t size = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
  Memory m(static_cast<std::byte*>(std::aligned_alloc(4096, std::max<size_t>(size, 4096))));
  std::memset(m.get(), 0, size);
  return m;
}

namespace {
class DropStream final : public Stream {
 public:
  Backend backend() const override { return Backend::kSim; }
  void enqueue(const char*, const Cost&, std::function<void()>) override {}
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_{1};
};
}  // namespace

BlockStack::BlockStack(const ModelConfig& config, const BatchShape& shape, DType dtype, int threads)
    : shape_(shape), dtype_(dtype), width_(config.dim), stream_(threads) {
  const int64_t row_bytes = shape.rows() * width_ * static_cast<int64_t>(sizeof(float));
  for (int64_t i = 0; i < config.layers; ++i) {
    Block b{.block = std::make_unique<WanBlock>(config, i), .weights = {}, .packed = {}, .gradients = {}, .input = {}};
    b.weights = memory(b.block->layout().elements * dtype_bytes(dtype));
    b.packed = memory(b.block->packed_bytes(dtype, true));
    b.gradients = memory(b.block->layout().elements * 4);
    b.input = memory(row_bytes);
    blocks_.push_back(std::move(b));
  }
  const WanBlock& first = *blocks_.front().block;
  saved_ = memory(first.saved_bytes(shape, dtype));
  recomputed_ = memory(row_bytes);
  dcontext_ = memory(shape.batch * shape.context_rows * width_ * 4);
  dmodulation_ = memory(shape.timesteps() * kSlots * width_ * 4);
  DropStream drop;
  Workspace dry;
  auto* nowhere = reinterpret_cast<float*>(uintptr_t{1} << 40);  // NOLINT(performance-no-int-to-ptr): a dry run only compares it with null
  const Conditioning c{nowhere, nowhere, nowhere, nowhere};
  first.forward({drop, dry, shape, dtype, nowhere, nowhere}, c, nowhere, nowhere, nullptr);
  first.forward({drop, dry, shape, dtype, nowhere, nowhere}, c, nowhere, nowhere, nowhere);
  first.backward({drop, dry, shape, dtype, nowhere, nowhere}, c, nowhere, nowhere, nowhere, nowhere, nowhere);
  workspace_bytes_ = dry.high_water();
  workspace_ = memory(workspace_bytes_);
}

size_t BlockStack::index_of(const Block& b, const std::string& name) const {
  const auto& params = b.block->params();
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].name == name) return i;
  throw Error(fmt::format("no parameter {} in a block", name));
}

void BlockStack::set_parameter(int64_t layer, const std::string& name, const void* values) {
  Block& b = blocks_[static_cast<size_t>(layer)];
  const size_t i = index_of(b, name);
  std::memcpy(b.weights.get() + b.block->layout().offset[i] * dtype_bytes(dtype_), values,
              static_cast<size_t>(element_count(b.block->params()[i].shape) * dtype_bytes(dtype_)));
}

void BlockStack::fill_random() {
  const Random random(1, RandomPurpose::kTest);
  for (size_t l = 0; l < blocks_.size(); ++l)
    for (size_t i = 0; i < blocks_[l].block->params().size(); ++i) {
      const ParamSpec& p = blocks_[l].block->params()[i];
      const int64_t n = element_count(p.shape);
      const float spread = p.shape.size() > 1 ? 1 / std::sqrt(static_cast<float>(p.shape.back())) : 0.1F;
      std::vector<float> v(static_cast<size_t>(n));
      for (size_t e = 0; e < v.size(); ++e)
        v[e] = (p.init == ParamInit::kOnes ? 1.0F : 0.0F) +
               spread * (static_cast<float>(random.bits(l * 64 + i, e / 4)[e % 4] >> 8) * 0x1p-23F - 1);
      convert_from_f32(blocks_[l].weights.get() + blocks_[l].block->layout().offset[i] * dtype_bytes(dtype_), dtype_,
                       v.data(), n);
    }
}

void BlockStack::pack(bool training) {
  for (Block& b : blocks_) b.block->pack(stream_, dtype_, training, b.weights.get(), b.packed.get());
}

LayerCall BlockStack::call(const Block& b, Workspace& w) {
  return {stream_, w, shape_, dtype_, b.weights.get(), b.packed.get()};
}

void BlockStack::infer(const float* x, const float* context, const float* modulation, float* y) {
  const Conditioning c{context, modulation, nullptr, nullptr};
  Workspace w(workspace_.get(), workspace_bytes_);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    auto* out = i + 1 < blocks_.size() ? reinterpret_cast<float*>(blocks_[i + 1].input.get()) : y;
    blocks_[i].block->forward(call(blocks_[i], w), c, x, out, nullptr);
    x = out;
  }
}

void BlockStack::train(const float* x, const float* context, const float* modulation, const float* dy, float* y,
                       float* dx) {
  const int64_t context_elements = shape_.batch * shape_.context_rows * width_;
  std::memset(dcontext_.get(), 0, static_cast<size_t>(context_elements) * 4);
  std::memset(dmodulation_.get(), 0, static_cast<size_t>(shape_.timesteps() * kSlots * width_) * 4);
  infer(x, context, modulation, y);
  const Conditioning c{context, modulation, reinterpret_cast<float*>(dcontext_.get()),
                       reinterpret_cast<float*>(dmodulation_.get())};
  Workspace w(workspace_.get(), workspace_bytes_);
  for (size_t i = blocks_.size(); i-- > 0;) {
    const Block& b = blocks_[i];
    const float* input = i > 0 ? reinterpret_cast<const float*>(b.input.get()) : x;
    std::memset(b.gradients.get(), 0, static_cast<size_t>(b.block->layout().elements) * 4);
    b.block->forward(call(b, w), c, input, reinterpret_cast<float*>(recomputed_.get()), saved_.get());
    b.block->backward(call(b, w), c, input, saved_.get(), i + 1 == blocks_.size() ? dy : dx, dx,
                      reinterpret_cast<float*>(b.gradients.get()));
  }
}

const float* BlockStack::gradient(int64_t layer, const std::string& name, int64_t* count) const {
  const Block& b = blocks_[static_cast<size_t>(layer)];
  const size_t i = index_of(b, name);
  if (count) *count = element_count(b.block->params()[i].shape);
  return reinterpret_cast<const float*>(b.gradients.get()) + b.block->layout().offset[i];
}

}  // namespace megaslide::bench
