// One SHA-256 over all persistent state in canonical order, so that two equal hashes mean bit-equal states however they
// are stored: fp32 and split masters give the same hash, and a run in memory the same as its checkpoint.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace megaslide {

// Order: the tensors of wan_tensors() (io/wan_names.h) under their complete diffusers names, for each the weights, the
// masters and, in a training state, the moments; then the step. Sections may come in several calls.
//   hasher.begin_tensor("blocks.0.norm2.weight", n); hasher.weights(w); hasher.masters(p);
//   hasher.first_moments(m); hasher.second_moments(v);  …  hasher.add_step(step, rng);
class StateHasher {
 public:
  void begin_tensor(std::string_view name, int64_t elements);
  void weights(std::span<const uint16_t> w);  // bf16 patterns; of an fp32 weight, to_bf16()
  void masters(std::span<const float> p);
  void masters(std::span<const uint16_t> w, std::span<const int16_t> low);  // split codec: bits = (w << 16) + low
  void first_moments(std::span<const float> m);
  void second_moments(std::span<const float> v);

  // All sections of a tensor at once; m and v empty for a model without moments.
  void add_tensor(std::string_view name, std::span<const uint16_t> w, std::span<const float> p, std::span<const float> m,
                  std::span<const float> v);
  // `rng`: what the generator's state is beyond the step, as text (for Philox, the seed).
  void add_step(uint64_t step, std::string_view rng);
  std::string hex() const;

 private:
  enum Section { kNone, kWeights, kMasters, kFirst, kSecond };
  void section(Section next, size_t count);
  void add_number(uint64_t n);

  Sha256 hash_;
  Section section_ = kNone;
  int64_t elements_ = 0, filled_ = 0;
  std::vector<uint32_t> scratch_;
};

// The fp32 master of the split codec.
inline uint32_t split_master_bits(uint16_t w, int16_t low) {
  return (uint32_t{w} << 16) + static_cast<uint32_t>(static_cast<int32_t>(low));
}

}  // namespace megaslide
