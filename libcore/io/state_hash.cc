#include "io/state_hash.h"

#include <algorithm>

#include "base/error.h"

namespace megaslide {
namespace {
constexpr size_t kPiece = 16384;  // masters expanded at a time

template <class T>
std::span<const std::byte> bytes(std::span<const T> s) { return std::as_bytes(s); }
}  // namespace

void StateHasher::add_number(uint64_t n) {
  std::byte b[8];
  for (int i = 0; i < 8; ++i) b[i] = static_cast<std::byte>(n >> (8 * i));
  hash_.update(b);
}

void StateHasher::begin_tensor(std::string_view name, int64_t elements) {
  MS_CHECK(filled_ == elements_ && (section_ == kNone || section_ == kMasters || section_ == kSecond), "before {}: a tensor is incomplete", name);
  add_number(name.size());
  hash_.update(name);
  add_number(static_cast<uint64_t>(elements));
  elements_ = elements;
  filled_ = 0;
  section_ = kWeights;
}

void StateHasher::section(Section next, size_t count) {
  if (next != section_) {
    MS_CHECK(next == section_ + 1 && filled_ == elements_, "sections of a tensor are out of order or incomplete");
    section_ = next;
    filled_ = 0;
  }
  filled_ += static_cast<int64_t>(count);
  MS_CHECK(filled_ <= elements_, "too many elements");
}

void StateHasher::weights(std::span<const uint16_t> w) {
  section(kWeights, w.size());
  hash_.update(bytes(w));
}

void StateHasher::masters(std::span<const float> p) {
  section(kMasters, p.size());
  hash_.update(bytes(p));
}

void StateHasher::masters(std::span<const uint16_t> w, std::span<const int16_t> low) {
  MS_CHECK(w.size() == low.size());
  section(kMasters, w.size());
  scratch_.resize(std::min(kPiece, w.size()));
  for (size_t at = 0; at < w.size(); at += kPiece) {
    const size_t n = std::min(kPiece, w.size() - at);
    for (size_t i = 0; i < n; ++i) scratch_[i] = split_master_bits(w[at + i], low[at + i]);
    hash_.update(bytes(std::span<const uint32_t>(scratch_.data(), n)));
  }
}

void StateHasher::first_moments(std::span<const float> m) {
  section(kFirst, m.size());
  hash_.update(bytes(m));
}

void StateHasher::second_moments(std::span<const float> v) {
  section(kSecond, v.size());
  hash_.update(bytes(v));
}

void StateHasher::add_tensor(std::string_view name, std::span<const uint16_t> w, std::span<const float> p, std::span<const float> m,
                             std::span<const float> v) {
  begin_tensor(name, static_cast<int64_t>(w.size()));
  weights(w);
  masters(p);
  if (m.empty() && v.empty()) return;
  first_moments(m);
  second_moments(v);
}

void StateHasher::add_step(uint64_t step, std::string_view rng) {
  MS_CHECK(filled_ == elements_);
  hash_.update("step");
  add_number(step);
  add_number(rng.size());
  hash_.update(rng);
}

std::string StateHasher::hex() const {
  MS_CHECK(filled_ == elements_);
  return hash_.hex();
}

}  // namespace megaslide
