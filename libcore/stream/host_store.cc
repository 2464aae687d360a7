#include "stream/host_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {

HostStore::HostStore(const Network& network, const HostStoreOptions& options) : options_(options) {
  MS_CHECK(options.compute_dtype == DType::kBF16 || options.compute_dtype == DType::kF32);
  MS_CHECK(options.streamed_slots == 0 || !options.training);
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
      s.master = static_cast<float*>(allocate(n * 4, options_.training ? ledger_.masters : ledger_.weights));
      s.weights = s.master;
    } else {
      s.weights = allocate(n * 2, ledger_.weights);
      if (options_.training && options_.masters == MasterCodec::kSplit) s.remainder = static_cast<int16_t*>(allocate(n * 2, ledger_.masters));
      if (options_.training && options_.masters == MasterCodec::kFp32) s.master = static_cast<float*>(allocate(n * 4, ledger_.masters));
    }
    if (options_.training) {
      s.exp_avg = static_cast<float*>(allocate(n * 4, ledger_.moments));
      s.exp_avg_sq = static_cast<float*>(allocate(n * 4, ledger_.moments));
      s.gradient = allocate(n * dtype_bytes(options_.gradients), ledger_.gradients);
    }
    states_.push_back(std::move(s));
  };
  add(*network.embedding, "", nullptr);
  int64_t largest = 0;
  for (const auto& l : network.layers) largest = std::max(largest, l->layout().elements);
  std::vector<void*> slabs;
  for (int i = 0; i < options.streamed_slots; ++i) slabs.push_back(allocate(largest * dtype_bytes(options.compute_dtype), ledger_.weights));
  for (size_t l = 0; l < network.layers.size(); ++l)
    add(*network.layers[l], fmt::format("blocks.{}.", l), slabs.empty() ? nullptr : slabs[l % slabs.size()]);
  add(*network.head, "", nullptr);
}

HostStore::~HostStore() {
  for (const auto& [p, bytes] : mappings_) munmap(p, static_cast<size_t>(bytes));
}

void* HostStore::allocate(int64_t bytes, int64_t& category) {
  constexpr int64_t kPage = 4096;
  const int64_t size = (bytes + kPage - 1) / kPage * kPage;
  category += size;
  if (options_.simulated) {
    void* p = reinterpret_cast<void*>(next_virtual_);
    next_virtual_ += static_cast<uintptr_t>(size);
    return p;
  }
  if (size == 0) return nullptr;
  void* p = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED)
    throw Error(fmt::format("out of host memory: {} bytes of model state could not be allocated: {}", size, std::strerror(errno)),
                "plan-memory prints what the run needs; a smaller state codec or a smaller model fits");
  mappings_.emplace_back(p, size);
  return p;
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

}  // namespace megaslide
