#include "device/arena.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace megaslide {

std::string_view memory_category_name(MemoryCategory c) {
  constexpr std::string_view names[] = {"weights", "activations", "gradients", "workspace", "other"};
  return names[static_cast<size_t>(c)];
}

std::string_view stream_kind_name(StreamKind k) {
  constexpr std::string_view names[] = {"compute", "upload", "download", "host", "disk"};
  return names[static_cast<size_t>(k)];
}

double StreamTimes::wait_disk() const {
  const double for_optimizer = std::min(wait(StreamKind::kUpload, StreamKind::kHost), wait(StreamKind::kHost, StreamKind::kDisk));
  return std::min(wait(StreamKind::kCompute, StreamKind::kUpload), wait(StreamKind::kUpload, StreamKind::kDisk) + for_optimizer);
}

double StreamTimes::wait_optimizer() const {
  const double uploads = wait(StreamKind::kCompute, StreamKind::kUpload) - wait_disk();
  const double of_optimizer = wait(StreamKind::kUpload, StreamKind::kHost) - wait(StreamKind::kHost, StreamKind::kDisk);
  return std::min(uploads, std::max(0.0, of_optimizer));
}

Arena::Arena(int64_t budget) { report_.budget = budget; }

int64_t Arena::allocate(int64_t bytes, std::string_view name, MemoryCategory category) {
  MS_CHECK(bytes >= 0);
  const int64_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  const int64_t limit = report_.budget ? report_.budget : std::numeric_limits<int64_t>::max();
  int64_t offset = 0;
  for (const auto& [begin, a] : used_) {
    if (begin - offset >= size) break;
    offset = begin + a.bytes;
  }
  if (size > limit - offset) out_of_memory(size, name);
  used_[offset] = {std::string(name), category, size};
  extent_ = std::max(extent_, offset + size);
  report_.in_use += size;
  if (report_.in_use > report_.peak) {
    report_.peak = report_.in_use;
    peak_unnoted_ = true;
  }
  return offset;
}

void Arena::release(int64_t offset) {
  const auto it = used_.find(offset);
  MS_CHECK(it != used_.end(), "release of memory that is not allocated");
  note_peak();
  report_.in_use -= it->second.bytes;
  used_.erase(it);
}

// What is in use is the peak as long as `peak_unnoted_` is set.
void Arena::note_peak() const {
  if (!std::exchange(peak_unnoted_, false)) return;
  report_.at_peak.clear();
  std::fill(std::begin(report_.peak_by_category), std::end(report_.peak_by_category), 0);
  for (const auto& [begin, a] : used_) {
    report_.at_peak.push_back(a);
    report_.peak_by_category[static_cast<size_t>(a.category)] += a.bytes;
  }
}

const MemoryReport& Arena::report() const {
  note_peak();
  return report_;
}

void Arena::out_of_memory(int64_t bytes, std::string_view name) const {
  std::string ledger;
  for (const auto& [begin, a] : used_) ledger += fmt::format("\n  {:>15} bytes  {} ({})", a.bytes, a.name, memory_category_name(a.category));
  throw Error(fmt::format("out of device memory: {} needs {} bytes, {} of {} are in use:{}", name, bytes, report_.in_use,
                          report_.budget, ledger),
              "raise stream.device_budget, or make the run smaller (plan-memory prints what would fit)", ErrorKind::kNo);
}

}  // namespace megaslide
