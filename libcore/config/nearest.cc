#include "config/nearest.h"

#include <algorithm>

namespace megaslide {
namespace {

// Optimal string alignment distance, or `limit` where it is at least that.
size_t edit_distance(const std::string& a, const std::string& b, size_t limit) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(row);
    // A later row grows from the last two by edits, none of them negative.
    if (std::min(*std::min_element(previous.begin(), previous.end()), *std::min_element(before.begin(), before.end())) >= limit) return limit;
  }
  return std::min(previous[b.size()], limit);
}

}  // namespace

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 256;  // a longer name is no misspelling, and the cost is quadratic
  if (name.size() > kLongest) return {};
  std::string best;
  size_t smallest = std::max<size_t>(name.size(), 3) / 3 + 1;
  for (const std::string& candidate : candidates) {
    const size_t apart = std::max(name.size(), candidate.size()) - std::min(name.size(), candidate.size());
    if (apart >= smallest) continue;  // at least that many edits
    const size_t d = edit_distance(name, candidate, smallest);
    if (d < smallest) {
      smallest = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace megaslide
