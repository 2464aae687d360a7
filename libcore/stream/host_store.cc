#include "stream/host_store.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {
namespace {

size_t index_of(StatePart p) { return static_cast<size_t>(p); }

PartMemory memory_of(const ModuleState& s) {
  PartMemory m = {};
  m[index_of(StatePart::kWeights)] = s.weights;
  m[index_of(StatePart::kMaster)] = s.remainder ? static_cast<void*>(s.remainder) : s.master;
  m[index_of(StatePart::kExpAvg)] = s.exp_avg;
  m[index_of(StatePart::kExpAvgSq)] = s.exp_avg_sq;
  m[index_of(StatePart::kExpAvgScale)] = s.exp_avg_scale;
  m[index_of(StatePart::kExpAvgSqScale)] = s.exp_avg_sq_scale;
  m[index_of(StatePart::kGradient)] = s.gradient;
  return m;
}

void place(ModuleState& s, const HostStoreOptions& o, StatePart part, void* memory) {
  switch (part) {
    case StatePart::kWeights:
      s.weights = memory;
      if (o.compute_dtype == DType::kF32) s.master = static_cast<float*>(memory);
      break;
    case StatePart::kMaster:
      if (o.masters == MasterCodec::kSplit) s.remainder = static_cast<int16_t*>(memory);
      else s.master = static_cast<float*>(memory);
      break;
    case StatePart::kExpAvg: s.exp_avg = memory; break;
    case StatePart::kExpAvgSq: s.exp_avg_sq = memory; break;
    case StatePart::kExpAvgScale: s.exp_avg_scale = static_cast<float*>(memory); break;
    case StatePart::kExpAvgSqScale: s.exp_avg_sq_scale = static_cast<float*>(memory); break;
    case StatePart::kGradient: s.gradient = memory; break;
  }
}

// What every step brings to the device, or back.
bool moves(StatePart part) { return part == StatePart::kWeights || part == StatePart::kGradient; }

}  // namespace

HostStore::HostStore(const Network& network, const HostStoreOptions& options) : options_(options), memory_(options.simulated) {
  MS_CHECK(options.compute_dtype == DType::kBF16 || options.compute_dtype == DType::kF32);
  MS_CHECK(options.streamed_slots == 0 || !options.training);
  MS_CHECK(!options.on_disk || options.training);
  MS_CHECK(options.masters != MasterCodec::kBf16Sr || options.compute_dtype == DType::kBF16);
  int64_t largest_layer = 0;
  for (const auto& l : network.layers) largest_layer = std::max(largest_layer, l->layout().elements);
  std::vector<void*> weight_slabs, gradient_slabs;
  for (int i = 0; i < options.streamed_slots; ++i)
    weight_slabs.push_back(memory_.allocate(largest_layer * dtype_bytes(options.compute_dtype), ledger_.weights));
  const int64_t largest = std::max({largest_layer, network.embedding->layout().elements, network.head->layout().elements});
  for (int i = 0; options.training && i < options.gradient_slots; ++i)
    gradient_slabs.push_back(memory_.allocate(largest * dtype_bytes(options.gradients), ledger_.gradients));
  if (options.on_disk) make_tier(network);
  add_module(*network.embedding, "", nullptr, gradient_slabs);
  for (size_t l = 0; l < network.layers.size(); ++l)
    add_module(*network.layers[l], fmt::format("blocks.{}.", l), weight_slabs.empty() ? nullptr : weight_slabs[l % weight_slabs.size()], gradient_slabs);
  add_module(*network.head, "", nullptr, gradient_slabs);
  visited_.assign(states_.size(), 0);
}

// Of weights that are their own masters there is one part; it is accounted as the master while training.
PartBytes HostStore::part_bytes(const Module& module) const {
  PartBytes bytes = {};
  const int64_t n = module.layout().elements;
  const bool bf16_weights = options_.compute_dtype == DType::kBF16;
  bytes[index_of(StatePart::kWeights)] = n * dtype_bytes(options_.compute_dtype);
  if (!options_.training) return bytes;
  if (bf16_weights && options_.masters == MasterCodec::kSplit) bytes[index_of(StatePart::kMaster)] = n * 2;
  if (bf16_weights && options_.masters == MasterCodec::kFp32) bytes[index_of(StatePart::kMaster)] = n * 4;
  bytes[index_of(StatePart::kExpAvg)] = bytes[index_of(StatePart::kExpAvgSq)] = moment_bytes(options_.moments, n);
  if (options_.moments == MomentCodec::kInt8) {
    int64_t blocks = 0;
    for (const ParamSpec& p : module.params()) blocks += moment_blocks(element_count(p.shape));
    bytes[index_of(StatePart::kExpAvgScale)] = bytes[index_of(StatePart::kExpAvgSqScale)] = blocks * 4;
  }
  // In slabs that all modules share it is no part of one.
  if (options_.gradient_slots == 0) bytes[index_of(StatePart::kGradient)] = n * dtype_bytes(options_.gradients);
  return bytes;
}

int64_t& HostStore::category(StatePart part) {
  switch (part) {
    case StatePart::kWeights: return options_.training && options_.compute_dtype == DType::kF32 ? ledger_.masters : ledger_.weights;
    case StatePart::kMaster: return ledger_.masters;
    case StatePart::kGradient: return ledger_.gradients;
    default: return ledger_.moments;
  }
}

void HostStore::make_tier(const Network& network) {
  std::vector<StateTier::Layer> layers;
  for (size_t l = 0; l < network.layers.size(); ++l) layers.push_back({fmt::format("blocks.{}.", l), part_bytes(*network.layers[l])});
  const int slots = std::min(options_.slots, static_cast<int>(layers.size()));
  tier_ = std::make_unique<StateTier>(layers, slots + 1, options_.simulated ? "" : options_.tier_path, options_.block_file);
  const auto allocate = [&](StatePart part) { return memory_.allocate(tier_->slab_bytes()[index_of(part)], category(part), moves(part)); };
  for (int i = 0; i <= slots; ++i) tier_->set_weight_slab(i, allocate(StatePart::kWeights));
  for (int i = 0; i < kRestSlabs; ++i)
    for (size_t p = 0; p < kStateParts; ++p)
      if (const auto part = static_cast<StatePart>(p); group_of(part) == kRestGroup) tier_->set_rest_slab(i, part, allocate(part));
  for (int i = 0; i < kTierGradientSlabs; ++i) tier_->set_gradient_slab(i, allocate(StatePart::kGradient));
  tier_->register_slabs();
  ledger_.disk = tier_->file_bytes();
}

void HostStore::add_module(const Module& module, std::string prefix, void* streamed, const std::vector<void*>& gradients) {
  const int index = modules();
  ModuleState& s = states_.emplace_back();
  s.module = &module;
  s.prefix = std::move(prefix);
  if (streamed) {
    s.weights = streamed;
    return;
  }
  if (options_.training) {
    int64_t blocks = 0;
    for (const ParamSpec& p : module.params()) {
      s.scale_at.push_back(blocks);
      blocks += moment_blocks(element_count(p.shape));
    }
    if (!gradients.empty()) s.gradient = gradients[static_cast<size_t>(index) % gradients.size()];
  }
  if (tier_ && !s.prefix.empty()) {
    place_weights(index, 0);
    place_rest(index, 0);
    if (gradients.empty()) s.gradient = tier_->gradient_slab(index % kTierGradientSlabs);
    return;
  }
  const PartBytes bytes = part_bytes(module);
  for (size_t p = 0; p < kStateParts; ++p)
    if (const auto part = static_cast<StatePart>(p); bytes[p] > 0) place(s, options_, part, memory_.allocate(bytes[p], category(part), moves(part)));
}

void HostStore::place_weights(int module, int slab) const {
  place(states_[static_cast<size_t>(module)], options_, StatePart::kWeights, tier_->weight_slab(slab));
}

void HostStore::place_rest(int module, int slab) const {
  ModuleState& s = states_[static_cast<size_t>(module)];
  for (size_t p = 0; p < kStateParts; ++p)
    if (const auto part = static_cast<StatePart>(p); group_of(part) == kRestGroup && tier_->rest_slab(slab, part)) place(s, options_, part, tier_->rest_slab(slab, part));
}

std::vector<BlockFile::Transfer> HostStore::transfers(int module, unsigned groups) const {
  return tier_->transfers(module - 1, groups, memory_of(this->module(module)));
}

void HostStore::visit(int module, bool change, FunctionRef<void(ModuleState&)> work) const {
  ModuleState& s = states_[static_cast<size_t>(module)];
  if (!on_disk(module)) return work(s);
  const int slab = tier_->take_visit();
  std::exception_ptr failure;
  try {
    place_weights(module, slab);
    place_rest(module, slab);
    const auto parts = transfers(module, kWeightsGroup | kRestGroup);
    tier_->read(parts);
    visited_[static_cast<size_t>(module)] = 1;
    work(s);
    if (change) tier_->write(parts);
  } catch (...) {
    failure = std::current_exception();
  }
  visited_[static_cast<size_t>(module)] = 0;
  tier_->end_visit(slab);
  if (failure) std::rethrow_exception(failure);
}

void HostStore::read_module(int module, FunctionRef<void(const ModuleState&)> work) const {
  visit(module, false, [&](ModuleState& s) { work(s); });
}
void HostStore::change_module(int module, FunctionRef<void(ModuleState&)> work) { visit(module, true, work); }

const ModuleState& HostStore::in_memory(int module) const {
  MS_CHECK(!on_disk(module) || visited_[static_cast<size_t>(module)], "module {} lies on disk", module);
  return this->module(module);
}

void HostStore::read_master(ThreadPool& pool, int module, int64_t begin, int64_t n, float* out) const {
  const ModuleState& s = in_memory(module);
  const auto* w = static_cast<const bf16*>(s.weights) + begin;
  if (s.master) std::memcpy(out, s.master + begin, static_cast<size_t>(n) * 4);
  else if (s.remainder) join_master(pool, out, w, s.remainder + begin, n);
  else for (int64_t i = 0; i < n; ++i) out[i] = to_float(w[i]);
}

void HostStore::write_master(ThreadPool& pool, int module, int64_t begin, int64_t n, const float* in) {
  const ModuleState& s = in_memory(module);
  if (s.master) std::memcpy(s.master + begin, in, static_cast<size_t>(n) * 4);
  if (options_.compute_dtype == DType::kF32) return;
  auto* w = static_cast<bf16*>(s.weights) + begin;
  if (s.remainder) split_master(pool, w, s.remainder + begin, in, n);
  else round_master(pool, w, in, n);
}

AdamWState optimizer_state(const HostStoreOptions& options, const ModuleState& s, size_t parameter) {
  const int64_t at = s.module->layout().offset[parameter], scale = s.scale_at[parameter];
  const auto moment = [&](void* slab) { return static_cast<std::byte*>(slab) + moment_bytes(options.moments, at); };
  AdamWState a;
  a.masters = s.master ? MasterCodec::kFp32 : options.masters;
  a.moments = options.moments;
  a.p = s.master ? s.master + at : nullptr;
  a.w = s.weights == s.master ? nullptr : static_cast<bf16*>(s.weights) + at;
  a.r = s.remainder ? s.remainder + at : nullptr;
  a.m = moment(s.exp_avg);
  a.v = moment(s.exp_avg_sq);
  if (s.exp_avg_scale) a.m_scale = s.exp_avg_scale + scale, a.v_scale = s.exp_avg_sq_scale + scale;
  return a;
}

AdamWState HostStore::moments_at(int module, size_t parameter, int64_t first) const {
  MS_CHECK(first % kMomentBlock == 0);
  AdamWState a = optimizer_state(options_, in_memory(module), parameter);
  a.m = static_cast<std::byte*>(a.m) + moment_bytes(options_.moments, first);
  a.v = static_cast<std::byte*>(a.v) + moment_bytes(options_.moments, first);
  if (a.m_scale) a.m_scale += first / kMomentBlock, a.v_scale += first / kMomentBlock;
  return a;
}

void HostStore::read_first_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, float* m) const {
  const AdamWState a = moments_at(module, parameter, first);
  decode_m(pool, a.moments, m, a.m, a.m_scale, n);
}

void HostStore::read_second_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, float* v) const {
  const AdamWState a = moments_at(module, parameter, first);
  decode_v(pool, a.moments, v, a.v, a.v_scale, n);
}

void HostStore::write_first_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, const float* m) {
  const AdamWState a = moments_at(module, parameter, first);
  encode_m(pool, a.moments, a.m, a.m_scale, m, n);
}

void HostStore::write_second_moment(ThreadPool& pool, int module, size_t parameter, int64_t first, int64_t n, const float* v) {
  const AdamWState a = moments_at(module, parameter, first);
  encode_v(pool, a.moments, a.v, a.v_scale, v, n);
}

}  // namespace megaslide
