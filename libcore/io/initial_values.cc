#include <cmath>

#include "base/philox.h"
#include "io/shard.h"

namespace megaslide {

void fill_normal(std::span<float> out, uint64_t seed, uint64_t series, double deviation, int64_t first) {
  const Random random(seed, RandomPurpose::kInit);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(deviation * random.normal(series, static_cast<uint64_t>(first) + i));
}

void fill_uniform(std::span<float> out, uint64_t seed, uint64_t series, double bound, int64_t first) {
  const Random random(seed, RandomPurpose::kInit);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(bound * (2 * random.uniform(series, static_cast<uint64_t>(first) + i) - 1));
}

}  // namespace megaslide
