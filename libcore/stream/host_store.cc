#include "stream/host_store.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {

HostStore::HostStore(const Network& network, const HostStoreOptions& options) : options_(options), memory_(options.simulated) {
  MS_CHECK(options.compute_dtype == DType::kBF16 || options.compute_dtype == DType::kF32);
  MS_CHECK(options.streamed_slots == 0 || !options.training);
  MS_CHECK(options.masters != MasterCodec::kBf16Sr || options.compute_dtype == DType::kBF16);
  int64_t largest_layer = 0;
  for (const auto& l : network.layers) largest_layer = std::max(largest_layer, l->layout().elements);
  std::vector<void*> weight_slabs, gradient_slabs;
  for (int i = 0; i < options.streamed_slots; ++i)
    weight_slabs.push_back(memory_.allocate(largest_layer * dtype_bytes(options.compute_dtype), ledger_.weights));
  const int64_t largest = std::max({largest_layer, network.embedding->layout().elements, network.head->layout().elements});
  for (int i = 0; options.training && i < options.gradient_slots; ++i)
    gradient_slabs.push_back(memory_.allocate(largest * dtype_bytes(options.gradients), ledger_.gradients));
  auto add = [&](const Module& module, std::string prefix, void* shared) {
    ModuleState s;
    s.module = &module;
    s.prefix = std::move(prefix);
    const int64_t n = module.layout().elements;
    if (shared) {
      s.weights = shared;
      states_.push_back(std::move(s));
      return;
    }
    const bool fp32_weights = options_.compute_dtype == DType::kF32;
    if (fp32_weights) {
      // One slab serves as weight and master; it is accounted as the master while training.
      s.master = static_cast<float*>(memory_.allocate(n * 4, options_.training ? ledger_.masters : ledger_.weights));
      s.weights = s.master;
    } else {
      s.weights = memory_.allocate(n * 2, ledger_.weights);
      if (options_.training && options_.masters == MasterCodec::kSplit) s.remainder = static_cast<int16_t*>(memory_.allocate(n * 2, ledger_.masters));
      if (options_.training && options_.masters == MasterCodec::kFp32) s.master = static_cast<float*>(memory_.allocate(n * 4, ledger_.masters));
    }
    if (options_.training) {
      int64_t blocks = 0;
      for (const ParamSpec& p : module.params()) {
        s.scale_at.push_back(blocks);
        blocks += moment_blocks(element_count(p.shape));
      }
      s.exp_avg = memory_.allocate(moment_bytes(options_.moments, n), ledger_.moments);
      s.exp_avg_sq = memory_.allocate(moment_bytes(options_.moments, n), ledger_.moments);
      if (options_.moments == MomentCodec::kInt8) {
        s.exp_avg_scale = static_cast<float*>(memory_.allocate(blocks * 4, ledger_.moments));
        s.exp_avg_sq_scale = static_cast<float*>(memory_.allocate(blocks * 4, ledger_.moments));
      }
      s.gradient = gradient_slabs.empty() ? memory_.allocate(n * dtype_bytes(options_.gradients), ledger_.gradients)
                                          : gradient_slabs[states_.size() % gradient_slabs.size()];
    }
    states_.push_back(std::move(s));
  };
  add(*network.embedding, "", nullptr);
  for (size_t l = 0; l < network.layers.size(); ++l)
    add(*network.layers[l], fmt::format("blocks.{}.", l), weight_slabs.empty() ? nullptr : weight_slabs[l % weight_slabs.size()]);
  add(*network.head, "", nullptr);
}

void HostStore::read_master(ThreadPool& pool, int module, int64_t begin, int64_t n, float* out) const {
  const ModuleState& s = this->module(module);
  const auto* w = static_cast<const bf16*>(s.weights) + begin;
  if (s.master) std::memcpy(out, s.master + begin, static_cast<size_t>(n) * 4);
  else if (s.remainder) join_master(pool, out, w, s.remainder + begin, n);
  else for (int64_t i = 0; i < n; ++i) out[i] = to_float(w[i]);
}

void HostStore::write_master(ThreadPool& pool, int module, int64_t begin, int64_t n, const float* in) {
  ModuleState& s = this->module(module);
  if (s.master) std::memcpy(s.master + begin, in, static_cast<size_t>(n) * 4);
  if (options_.compute_dtype == DType::kF32) return;
  auto* w = static_cast<bf16*>(s.weights) + begin;
  if (s.remainder) split_master(pool, w, s.remainder + begin, in, n);
  else round_master(pool, w, in, n);
}

AdamWState HostStore::optimizer_state(int module, size_t parameter) const {
  const ModuleState& s = this->module(module);
  const int64_t at = s.module->layout().offset[parameter], scale = s.scale_at[parameter];
  const auto moment = [&](void* slab) { return static_cast<std::byte*>(slab) + moment_bytes(options_.moments, at); };
  AdamWState a;
  a.masters = s.master ? MasterCodec::kFp32 : options_.masters;
  a.moments = options_.moments;
  a.p = s.master ? s.master + at : nullptr;
  a.w = s.weights == s.master ? nullptr : static_cast<bf16*>(s.weights) + at;
  a.r = s.remainder ? s.remainder + at : nullptr;
  a.m = moment(s.exp_avg);
  a.v = moment(s.exp_avg_sq);
  if (s.exp_avg_scale) a.m_scale = s.exp_avg_scale + scale, a.v_scale = s.exp_avg_sq_scale + scale;
  return a;
}

void HostStore::read_moments(ThreadPool& pool, int module, size_t parameter, float* m, float* v) const {
  const AdamWState a = optimizer_state(module, parameter);
  const int64_t n = element_count(this->module(module).module->params()[parameter].shape);
  decode_m(pool, a.moments, m, a.m, a.m_scale, n);
  decode_v(pool, a.moments, v, a.v, a.v_scale, n);
}

void HostStore::write_first_moment(ThreadPool& pool, int module, size_t parameter, const float* m) {
  const AdamWState a = optimizer_state(module, parameter);
  encode_m(pool, a.moments, a.m, a.m_scale, m, element_count(this->module(module).module->params()[parameter].shape));
}

void HostStore::write_second_moment(ThreadPool& pool, int module, size_t parameter, const float* v) {
  const AdamWState a = optimizer_state(module, parameter);
  encode_v(pool, a.moments, a.v, a.v_scale, v, element_count(this->module(module).module->params()[parameter].shape));
}

}  // namespace megaslide
