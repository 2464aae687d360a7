// The order in which the samples of an epoch are taken: a pure function of the seed and the epoch's number.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

// Samples of one latent shape, which may share a batch.
struct Bucket {
  Shape latent;                   // (C, T, h, w)
  std::vector<uint32_t> samples;  // numbers of an epoch's samples
  int64_t clips = 0;
  int64_t batch_size = 1;
  int64_t batches() const { return (static_cast<int64_t>(samples.size()) + batch_size - 1) / batch_size; }
  // Of the last batch, 1 … batch_size.
  int64_t last_batch() const { return static_cast<int64_t>(samples.size()) - (batches() - 1) * batch_size; }
};

class Epoch {
 public:
  // The samples of each bucket are shuffled and cut into batches, and the buckets take turns at random. So the order within a
  // bucket does not depend on the batch size. `ranks`: also deals each sample a place among all, for stratified draws.
  Epoch(std::span<const Bucket> buckets, uint64_t seed, int64_t number, bool ranks);

  size_t batches() const { return begins_.size(); }
  std::span<const uint32_t> batch(size_t i) const { return {samples_.data() + begins_[i].first, begins_[i].second}; }
  // Which of `strata` equal parts of a distribution the sample's draw belongs to: the samples of the epoch are spread
  // evenly over them, from a random start.
  int64_t stratum(uint32_t sample, int64_t strata) const;

 private:
  std::vector<uint32_t> samples_, ranks_;
  std::vector<std::pair<uint32_t, uint32_t>> begins_;  // first sample and size of each batch
  double start_ = 0;
};

// Shuffles `items` by the generator's series `series`.
void shuffle(std::vector<uint32_t>& items, uint64_t seed, uint64_t series);

}  // namespace megaslide
