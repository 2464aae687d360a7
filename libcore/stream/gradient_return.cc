#include "stream/gradient_return.h"

#include <algorithm>
#include <utility>

#include "kernels/gemm/gemm.h"
#include "kernels/memory/memory.h"

namespace megaslide {

GradientReturn::GradientReturn(Device& device, HostStore& store, Before before, Ready ready, const TakeMemory& take)
    : device_(device), store_(store), before_(std::move(before)), ready_(std::move(ready)) {
  int64_t elements = 0;
  for (int m = 0; m < store.modules(); ++m) elements = std::max(elements, store.module(m).module->layout().elements);
  sums_ = static_cast<float*>(take(elements * 4, "gradient sums", MemoryCategory::kGradients));
  if (device.shares_host_memory()) return;
  for (auto& p : staging_) p = take(elements * dtype_bytes(store.options().gradients), "gradient on its way", MemoryCategory::kGradients);
}

void GradientReturn::clear(int module) {
  fill_zero(device_.compute(), sums_, store_.module(module).module->layout().elements * 4);
}

void GradientReturn::send(int module) {
  Stream &c = device_.compute(), &d = device_.download();
  const int64_t n = store_.module(module).module->layout().elements;
  const DType dtype = store_.options().gradients;
  void* host = store_.module(module).gradient;
  const Event free = before_ ? before_(module) : Event{};
  Event done;
  if (device_.shares_host_memory()) {
    device_.wait(c, free);
    cast_operand(c, host, sums_, n, dtype);
    done = device_.record(c);
  } else {
    const auto k = static_cast<size_t>(std::exchange(next_, 1 - next_));
    device_.wait(c, staging_free_[k]);
    cast_operand(c, staging_[k], sums_, n, dtype);
    device_.wait(d, device_.record(c));
    device_.wait(d, free);
    device_.copy(d, host, staging_[k], n * dtype_bytes(dtype), CopyKind::kDownload, "download gradient");
    done = staging_free_[k] = device_.record(d);
  }
  if (ready_) ready_(module, done);
}

}  // namespace megaslide
