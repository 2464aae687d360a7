#include "train/epoch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace megaslide {
namespace {

// Of one epoch: 0 the turns, 1 … the buckets, the last the ranks.
uint64_t series_of(int64_t epoch, uint64_t which) { return static_cast<uint64_t>(epoch) << 24 | which; }
constexpr uint64_t kRanks = (1 << 24) - 1;

}  // namespace

void shuffle(std::vector<uint32_t>& items, uint64_t seed, uint64_t series) {
  const Random random(seed, RandomPurpose::kShuffle);
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(series, i, i)]);
}

Epoch::Epoch(std::span<const Bucket> buckets, uint64_t seed, int64_t number, bool ranks) {
  MS_CHECK(buckets.size() < kRanks);
  std::vector<uint32_t> turns;  // a bucket's number for each batch
  std::vector<int64_t> first(buckets.size()), taken(buckets.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::vector<uint32_t> samples = buckets[b].samples;
    shuffle(samples, seed, series_of(number, b + 1));
    first[b] = static_cast<int64_t>(samples_.size());
    samples_.insert(samples_.end(), samples.begin(), samples.end());
    turns.insert(turns.end(), static_cast<size_t>(buckets[b].batches()), static_cast<uint32_t>(b));
  }
  shuffle(turns, seed, series_of(number, 0));
  for (const uint32_t b : turns) {
    const int64_t i = taken[b]++;
    begins_.emplace_back(first[b] + i * buckets[b].batch_size, i + 1 < buckets[b].batches() ? buckets[b].batch_size : buckets[b].last_batch());
  }
  if (!ranks) return;
  ranks_.resize(samples_.size());
  std::iota(ranks_.begin(), ranks_.end(), uint32_t{0});
  shuffle(ranks_, seed, series_of(number, kRanks));
  start_ = Random(seed, RandomPurpose::kShuffle).uniform(series_of(number, kRanks), 0);
}

int64_t Epoch::stratum(uint32_t sample, int64_t strata) const {
  const double place = (ranks_[sample] + start_) / static_cast<double>(ranks_.size());
  return std::min(strata - 1, static_cast<int64_t>(place * static_cast<double>(strata)));
}

}  // namespace megaslide
