#include "stream/activation_stash.h"

#include <algorithm>

#include "base/error.h"

namespace megaslide {

ActivationStash::ActivationStash(Device& device, const StashOptions& options, const Sizes& sizes, bool simulated, const Allocate& allocate)
    : device_(device), on_host_(options.place == StashPlace::kHost), segment_(std::min(options.segment, sizes.layers)),
      last_kept_(sizes.layers / segment_), kept_places_(on_host_ ? kTransits : last_kept_ + 1), transits_(kTransits), memory_(simulated) {
  for (int a = 0; a < sizes.microbatches; ++a) {
    auto& places = places_.emplace_back();
    for (int i = 0; i < kept_places_ + segment_ - 1; ++i) {
      const bool passes = a == 0 && (i == place(0) || i == place(1));
      places.push_back(allocate(passes ? std::max(sizes.elements, sizes.elements_to_pass) : sizes.elements,
                                i < kept_places_ ? "stash" : "stash of the segment"));
    }
    auto& host = host_.emplace_back();
    for (int l = 0; leaves(l); l += segment_) host.push_back(static_cast<float*>(memory_.allocate(sizes.elements * 4, host_bytes_)));
  }
  pinned_ = PinnedMemory(device, memory_.spans());
}

int ActivationStash::place(int l) const {
  if (!kept(l)) return kept_places_ + l % segment_ - 1;
  return on_host_ ? l / segment_ % kTransits : l / segment_;
}

void ActivationStash::before_write(int l) {
  if (!on_host_ || !kept(l)) return;
  device_.wait(device_.compute(), transit(l).left);
}

void ActivationStash::written(int l, std::span<const int64_t> elements) {
  if (!on_host_ || !kept(l)) return;
  Transit& t = transit(l);
  t = {.layer = l};
  if (!leaves(l)) return;
  Stream& d = device_.download();
  device_.wait(d, device_.record(device_.compute()));
  for (size_t a = 0; a < elements.size(); ++a)
    device_.copy(d, host_[a][static_cast<size_t>(l / segment_)], at(static_cast<int>(a), l), elements[a] * 4, CopyKind::kDownload, "stash");
  t.left = device_.record(d);
}

void ActivationStash::fetch(int l, std::span<const int64_t> elements) {
  if (!on_host_ || l < 0 || !kept(l) || transit(l).layer == l) return;
  Transit& t = transit(l);
  Stream& u = device_.upload();
  device_.wait(u, t.released);
  for (size_t a = 0; a < elements.size(); ++a)
    device_.copy(u, at(static_cast<int>(a), l), host_[a][static_cast<size_t>(l / segment_)], elements[a] * 4, CopyKind::kUpload, "unstash");
  t = {.layer = l, .arrived = device_.record(u)};
}

void ActivationStash::wait(int l) {
  if (!on_host_ || !kept(l)) return;
  MS_CHECK(transit(l).layer == l, "the inputs of layer {} are not on the device", l);
  device_.wait(device_.compute(), transit(l).arrived);
}

void ActivationStash::release(int l) {
  if (on_host_ && kept(l)) transit(l).released = device_.record(device_.compute());
}

}  // namespace megaslide
