// Runs a whole network forward and backward on heap memory, layer by layer as the engine does but without streaming:
// for tests of the model alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "model/wan.h"

namespace megaslide::testing_support {

// Heap memory, 256-byte aligned, exactly as long as asked, filled with 0xff: NaN in every float type.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  std::byte* bytes() const { return data_.get(); }
  float* f32() const { return reinterpret_cast<float*>(data_.get()); }
  int64_t size() const { return size_; }
  void poison();

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  int64_t size_ = 0;
};

// A stream that drops its work, as `sim` does: arguments are never dereferenced.
class DryStream final : public Stream {
 public:
  Backend backend() const override { return Backend::kSim; }
  void enqueue(const char*, const Cost& cost, std::function<void()>) override {
    flops[static_cast<size_t>(cost.kernel_class)] += cost.flops;
    ++calls;
  }
  ThreadPool& pool() override { return pool_; }
  double flops[6] = {};
  int64_t calls = 0;

 private:
  ThreadPool pool_{1};
};

// Values of a parameter by its full diffusers name.
using ParameterSource = std::function<std::vector<float>(const std::string& name, const ParamSpec& spec)>;
// Random weights at which every gradient is alive: inits as the specs say, zeros and ones perturbed.
ParameterSource random_parameters(uint64_t seed);

class NetworkDriver {
 public:
  NetworkDriver(const ModelConfig& config, const BatchShape& shape, DType dtype, int threads,
                const ParameterSource& source, bool fp8_forward = false);

  // latent (B,Cin,T,2H,2W), timesteps (B), text (B,S,text_dim) → (B,Cout,T,2H,2W). Keeps what backward needs.
  std::vector<float> forward(const std::vector<float>& latent, const std::vector<float>& timesteps,
                             const std::vector<float>& text);
  // The same without keeping anything.
  std::vector<float> infer(const std::vector<float>& latent, const std::vector<float>& timesteps,
                           const std::vector<float>& text);
  void backward(const std::vector<float>& dout);  // of the last forward; gradients start at 0

  std::vector<float> gradient(const std::string& name) const;
  std::vector<std::string> names() const;
  std::vector<float> dlatent, dtext;
  // After forward: tokens after layer i (i = 0 is the embedding's), context, time, modulation.
  const std::vector<std::vector<float>>& states() const { return states_; }
  std::vector<float> context, time, modulation;

  std::vector<float> parameter(const std::string& name) const;
  void set_parameter(const std::string& name, const std::vector<float>& values);  // repacks

  // Tables of the samples' shots, (B, T) each, from here on; empty: one shot a sample.
  // (B, N, T, 2), of networks that need it.
  void set_displacement(std::vector<float> displacement) { displacement_ = std::move(displacement); }
  void set_shots(std::vector<int32_t> lo, std::vector<int32_t> hi) { t_lo_ = std::move(lo), t_hi_ = std::move(hi); }

  // Runs on another stream from here on.
  void replace_stream(std::unique_ptr<Stream> stream) { stream_ = std::move(stream); }

  // High water of the workspace by a dry run on addresses that don't exist.
  static int64_t dry_workspace(const ModelConfig& config, const BatchShape& shape, DType dtype, DryStream& stream,
                               bool fp8_forward = false);
  int64_t used_workspace() const { return high_; }

 private:
  struct Part {
    const Module* module = nullptr;
    std::string prefix;
    Buffer weights, packed, gradients, saved;
  };
  void pack(Part& part);
  Part& part_of(const std::string& name, size_t& index);
  LayerCall call(Part& part, Workspace& w) {
    return {*stream_, w, shape_, dtype_, part.weights.bytes(), part.packed.bytes(), t_lo_.empty() ? nullptr : t_lo_.data(),
            t_hi_.empty() ? nullptr : t_hi_.data(), displacement_.empty() ? nullptr : displacement_.data()};
  }
  std::vector<float> run(const std::vector<float>& latent, const std::vector<float>& timesteps,
                         const std::vector<float>& text, bool keep);

  BatchShape shape_;
  DType dtype_;
  Network network_;
  std::unique_ptr<Stream> stream_;
  Buffer workspace_;
  int64_t high_ = 0;
  std::vector<Part> parts_;  // embedding, layers, head
  std::vector<float> latent_, text_;
  std::vector<int32_t> t_lo_, t_hi_;
  std::vector<float> displacement_;
  std::vector<std::vector<float>> states_;
};

}  // namespace megaslide::testing_support
