// What makes a run fit that does not: settings, each one planned with the change in it, and clips of other sizes.
#include <algorithm>
#include <functional>
#include <optional>

#include "base/error.h"
#include "model/wan.h"
#include "plan/simulate.h"

namespace megaslide {
namespace {

// A change that may make a run fit. `apply` returns false where it changes nothing.
struct Change {
  std::string text;
  bool (*apply)(PlanRequest&);
  bool exclusive = false;  // of those at most one is made
};

void one_clip_a_batch(PlanRequest& r) {
  std::vector<BatchShape> shapes;
  for (BatchShape s : r.shapes) {
    s.batch = 1;
    if (std::find(shapes.begin(), shapes.end(), s) == shapes.end()) shapes.push_back(s);
  }
  r.shapes = shapes;
}
bool smaller_batch(PlanRequest& r) {
  if (r.run.data.batch_size == 1) return false;
  r.run.data.batch_size = 1;
  one_clip_a_batch(r);
  return true;
}
bool fewer_tokens(PlanRequest& r) {
  if (r.run.data.batch_tokens <= 1) return false;
  r.run.data.batch_tokens = 1;
  one_clip_a_batch(r);
  return true;
}
bool bf16_gradients(PlanRequest& r) {
  return std::exchange(r.run.optimizer.gradients, RunConfig::Gradients::kBf16) != RunConfig::Gradients::kBf16;
}
bool split_masters(PlanRequest& r) {
  return std::exchange(r.run.optimizer.masters, RunConfig::Masters::kSplit) != RunConfig::Masters::kSplit;
}
bool bf16_compute(PlanRequest& r) {
  return std::exchange(r.run.model.compute_dtype, RunConfig::ComputeDtype::kBf16) != RunConfig::ComputeDtype::kBf16;
}
bool recomputed_segments(PlanRequest& r) {
  r.run.stream.segment = 1;
  return std::exchange(r.run.stream.stash, RunConfig::Stash::kRecompute) != RunConfig::Stash::kRecompute;
}
bool stash_on_host(PlanRequest& r) {
  r.run.stream.segment = 1;
  return std::exchange(r.run.stream.stash, RunConfig::Stash::kHost) != RunConfig::Stash::kHost;
}
// Frames of a slab; nothing where a block sees whole clips.
template <int64_t frames>
bool slabs(PlanRequest& r) {
  const auto& shape = longest(r);
  if (r.run.model.fp8_forward || shape.frames <= frames || (r.run.stream.slabs > 0 && r.run.stream.slabs <= frames)) return false;
  for (const auto& layer : make_wan_network(r.model).layers)
    if (!layer->sees(shape.frames, {0, frames})) return false;
  r.run.stream.slabs = frames;
  return true;
}
// Of the layers' inputs few are kept, in host memory.
template <int64_t frames>
bool slabs_of_segments(PlanRequest& r) { return slabs<frames>(r) && recomputed_segments(r); }
bool int8_moments(PlanRequest& r) {
  return std::exchange(r.run.optimizer.moments, RunConfig::Moments::kInt8) != RunConfig::Moments::kInt8;
}
// Masters of 16 bits are the last resort: they need the weights themselves in bf16.
bool rounded_masters(PlanRequest& r) {
  if (r.run.model.compute_dtype != RunConfig::ComputeDtype::kBf16) return false;
  return std::exchange(r.run.optimizer.masters, RunConfig::Masters::kBf16StochasticRounding) != RunConfig::Masters::kBf16StochasticRounding;
}
// Only where the disk's space is known: fill_limits() then says whether the state has room there.
bool state_on_disk(PlanRequest& r) {
  if (!r.machine.disk_bytes) return false;
  return std::exchange(r.run.stream.tier, RunConfig::Tier::kNvme) != RunConfig::Tier::kNvme;
}
bool clip_by_layer(PlanRequest& r) { return std::exchange(r.run.train.clip, RunConfig::Clip::kLayer) == RunConfig::Clip::kExact; }
bool optimizer_on_host(PlanRequest& r) {
  return std::exchange(r.run.optimizer.device, RunConfig::OptimizerDevice::kCpu) != RunConfig::OptimizerDevice::kCpu;
}
bool two_slots(PlanRequest& r) { return std::exchange(r.run.stream.slots, 2) != 2; }
bool no_accumulation(PlanRequest& r) {
  r.run.train.gradient_accumulation_steps = 1;
  return std::exchange(r.max_microbatches, 1) != 1;
}

// Those that cost least come first; those that change what is learnt come last.
const std::vector<Change>& all_changes() {
  static const std::vector<Change> changes{
      {"optimizer.device=cpu", optimizer_on_host},
      {"stream.slots=2", two_slots},
      {"stream.stash=host", stash_on_host, true},
      {"stream.stash=recompute", recomputed_segments, true},
      {"stream.slabs=16", slabs<16>, true},
      {"stream.slabs=4", slabs<4>, true},
      {"stream.slabs=4 --set stream.stash=recompute", slabs_of_segments<4>, true},
      {"stream.tier=nvme", state_on_disk},
      {"optimizer.masters=split", split_masters},
      {"optimizer.gradients=bf16", bf16_gradients},
      {"optimizer.moments=int8", int8_moments},
      {"train.clip=layer", clip_by_layer},
      {"model.compute_dtype=bf16", bf16_compute},
      {"data.batch_size=1", smaller_batch},
      {"data.batch_tokens=1", fewer_tokens},
      {"train.gradient_accumulation_steps=1", no_accumulation},
      {"optimizer.masters=bf16-sr", rounded_masters},
  };
  return changes;
}

struct Found {
  std::string text;
  double seconds;
};

// With these changes; nothing where the run still does not fit.
std::optional<Found> with_changes(const PlanRequest& request, const std::vector<const Change*>& changes, StopToken stop) {
  PlanRequest r = request;
  std::string text;
  for (const Change* c : changes)
    if (c->apply(r)) text += (text.empty() ? "--set " : " --set ") + c->text;
  if (text.empty()) return {};
  const Plan p = simulate(r, stop);
  if (!surely_fits(p)) return {};
  return Found{text, p.step_seconds};
}

// All changes at once, with one of those that exclude each other, and with the layers' state on disk or not; then without each
// that is not needed, the dearest first.
std::optional<Found> fewest_changes(const PlanRequest& request, const Change* exclusive, bool on_disk, StopToken stop) {
  std::vector<const Change*> kept;
  for (const Change& c : all_changes())
    if ((!c.exclusive || &c == exclusive) && (on_disk || c.apply != state_on_disk)) kept.push_back(&c);
  auto best = with_changes(request, kept, stop);
  for (size_t i = kept.size(); best && i-- > 0;) {
    std::vector<const Change*> fewer;
    for (size_t k = 0; k < kept.size(); ++k)
      if (k != i) fewer.push_back(kept[k]);
    if (const auto found = with_changes(request, fewer, stop)) best = found, kept = fewer;
  }
  return best;
}

// Single changes; where none is enough, as few together as are.
std::vector<Found> settings_that_fit(const PlanRequest& request, StopToken stop) {
  std::vector<Found> found;
  for (const Change& c : all_changes())
    if (const auto alone = with_changes(request, {&c}, stop)) found.push_back(*alone);
  if (!found.empty()) return found;
  std::vector<const Change*> alternatives{nullptr};
  for (const Change& c : all_changes())
    if (c.exclusive) alternatives.push_back(&c);
  for (const bool on_disk : {false, true})
    for (const Change* one : alternatives)
      if (const auto f = fewest_changes(request, one, on_disk, stop))
        if (std::none_of(found.begin(), found.end(), [&](const Found& other) { return other.text == f->text; })) found.push_back(*f);
  return found;
}

// The limits themselves, where the run set them and the machine has more.
std::string raised_budgets(const PlanRequest& request, const Plan& plan) {
  std::string raised;
  size_t settled = 0;
  const auto raise = [&](const char* key, int64_t set, int64_t machine, int64_t needed, int64_t slack) {
    if (!set || needed <= set || (machine && needed > machine)) return;
    const int64_t budget = machine ? std::min(machine, needed + slack) : needed + slack;
    raised += fmt::format("{}--set {}={}", raised.empty() ? "" : " ", key, budget);
    ++settled;
  };
  raise("stream.device_budget", request.run.stream.device_budget, request.machine.device_memory, plan.device.peak, 0);
  raise("stream.host_budget", request.run.stream.host_budget, request.machine.host_memory, plan.host.total(), kStartSlack);
  return settled == plan.misfits.size() ? raised : "";
}

// The largest grids of fewer frames, or of smaller pictures, that fit: a hint for encoding the clips again.
std::vector<std::string> smaller_clips(const PlanRequest& request, StopToken stop) {
  const auto fits = [&](auto&& shrink) {
    PlanRequest r = request;
    for (auto& s : r.shapes) shrink(s);
    return surely_fits(simulate(r, stop));
  };
  const BatchShape largest = longest(request);
  std::vector<std::string> remedies;
  const int64_t frames = largest_that_fits(0, largest.frames, [&](int64_t n) { return fits([&](BatchShape& s) { s.frames = std::min(s.frames, n); }); });
  if (frames > 0) remedies.push_back(fmt::format("--num-frames {} (encode-clips, and then train on that cache)", (frames - 1) * request.model.temporal_stride() + 1));
  const int64_t unit = 2 * request.model.spatial_stride();
  for (int divisor = 2; divisor <= 8; divisor *= 2) {
    const int64_t h = largest.height / divisor, w = largest.width / divisor;
    if (h < 1 || w < 1) break;
    if (!fits([&](BatchShape& s) { s.height = std::min(s.height, h), s.width = std::min(s.width, w); })) continue;
    remedies.push_back(fmt::format("--size {}x{} (encode-clips, and then train on that cache)", w * unit, h * unit));
    break;
  }
  // Neither alone: single pictures, halved until they fit.
  for (int64_t h = largest.height, w = largest.width; remedies.empty() && h >= 1 && w >= 1; h /= 2, w /= 2) {
    if (!fits([&](BatchShape& s) { s.frames = 1, s.height = std::min(s.height, h), s.width = std::min(s.width, w); })) continue;
    remedies.push_back(fmt::format("--num-frames 1 --size {}x{} (encode-clips, and then train on that cache)", w * unit, h * unit));
  }
  return remedies;
}

}  // namespace

int64_t largest_that_fits(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits) {
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

bool apply_change(PlanRequest& request, std::string_view text) {
  const auto change = std::find_if(all_changes().begin(), all_changes().end(), [&](const Change& c) { return c.text == text; });
  MS_CHECK(change != all_changes().end(), "{}", text);
  return change->apply(request);
}

std::vector<std::string> find_remedies(const PlanRequest& request, const Plan& plan, StopToken stop) {
  std::vector<Found> found = settings_that_fit(request, stop);
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.seconds < b.seconds; });
  std::vector<std::string> remedies;
  remedies.reserve(found.size() + 1);
  for (const auto& f : found) remedies.push_back(f.text);
  if (auto raised = raised_budgets(request, plan); !raised.empty()) remedies.push_back(std::move(raised));
  for (auto& clips : smaller_clips(request, stop)) remedies.push_back(std::move(clips));
  return remedies;
}

}  // namespace megaslide
