#include "plan/fit.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/load.h"
#include "config/search_path.h"
#include "plan/simulate.h"

namespace megaslide {
namespace {

// The largest n in [1, limit] that fits, 0 where none does.
int64_t largest_up_to(int64_t start, int64_t limit, const std::function<bool(int64_t)>& fits) {
  int64_t low = 0, high = std::clamp<int64_t>(start, 1, limit);
  while (fits(high)) {
    low = high;
    if (high == limit) return limit;
    high = std::min(2 * high, limit);
  }
  return largest_that_fits(low, high, fits);
}

class Search {
 public:
  Search(const PlanRequest& request, StopToken stop) : request_(request), base_(longest(request)), stop_(stop) {}

  const BatchShape& base() const { return base_; }
  int64_t frames_of(const BatchShape& s) const { return (s.frames - 1) * request_.model.temporal_stride() + 1; }
  int64_t pixels(int64_t tokens) const { return tokens * 2 * request_.model.spatial_stride(); }

  FitRow row(std::initializer_list<std::string_view> changes) const {
    FitRow row;
    PlanRequest r = request_;
    for (const std::string_view change : changes) {
      apply_change(r, change);
      row.settings += fmt::format("{}--set {}", row.settings.empty() ? "" : " ", change);
    }
    BatchShape shape = base_;
    shape.frames = largest_frames(r);
    if (shape.frames > 0) {
      row.num_frames = frames_of(shape);
      row.num_frames_seconds = plan(r, shape).step_seconds;
    }
    const int64_t w = largest_up_to(base_.width, limit() * base_.width / std::max(base_.width, base_.height), [&](int64_t n) { return fits(r, with_width(n)); });
    if (w > 0) {
      shape = with_width(w);
      row.width = pixels(shape.width), row.height = pixels(shape.height);
      row.size_seconds = plan(r, shape).step_seconds;
    }
    return row;
  }

  FitModel model() const {
    FitModel m{.name = request_.model.name};
    const Plan p = plan(request_, base_);
    m.parameters = p.parameters;
    m.fits = surely_fits(p);
    m.step_seconds = p.step_seconds;
    if (const int64_t n = largest_frames(request_); n > 0) m.num_frames = frames_of(with_frames(n));
    return m;
  }

 private:
  // Positions along an axis that the model knows.
  int64_t limit() const { return request_.model.rope_max_seq_len; }
  int64_t largest_frames(const PlanRequest& r) const {
    return largest_up_to(base_.frames, limit(), [&](int64_t n) { return fits(r, with_frames(n)); });
  }
  BatchShape with_frames(int64_t n) const {
    BatchShape s = base_;
    s.frames = n;
    if (s.times > 1) s.times = n;
    return s;
  }
  BatchShape with_width(int64_t n) const {
    BatchShape s = base_;
    s.height = std::max<int64_t>(1, (2 * n * base_.height + base_.width) / (2 * base_.width));
    s.width = n;
    return s;
  }
  Plan plan(PlanRequest r, const BatchShape& shape) const {
    r.shapes = {shape};
    return simulate(r, stop_);
  }
  bool fits(const PlanRequest& r, const BatchShape& shape) const { return surely_fits(plan(r, shape)); }

  const PlanRequest& request_;
  BatchShape base_;
  StopToken stop_;
};

std::string clip_name(int64_t num_frames) { return num_frames ? std::to_string(num_frames) : "none"; }

}  // namespace

FitReport find_what_fits(const PlanRequest& request, StopToken stop) {
  if (!(request.run.stream.device_budget || request.machine.device_memory || request.run.stream.host_budget || request.machine.host_memory))
    throw usage_error("no limit is known, so everything fits", "name a machine with --machine, or budgets with --set stream.device_budget=24GiB");
  const Search search(request, stop);
  FitReport report;
  report.num_frames = search.frames_of(search.base());
  report.width = search.pixels(search.base().width), report.height = search.pixels(search.base().height);
  report.rows.push_back(search.row({}));
  report.rows.push_back(search.row({"stream.stash=host"}));
  report.rows.push_back(search.row({"stream.stash=recompute"}));
  if (PlanRequest slabs = request; apply_change(slabs, "stream.slabs=16")) {
    report.rows.push_back(search.row({"stream.slabs=16"}));
    report.rows.push_back(search.row({"stream.slabs=4 --set stream.stash=recompute"}));
  }
  report.rows.push_back(search.row({"stream.stash=host", "optimizer.moments=int8"}));
  if (request.machine.disk_bytes) report.rows.push_back(search.row({"stream.stash=host", "stream.tier=nvme"}));
  if (request.run.model.compute_dtype == RunConfig::ComputeDtype::kBf16)
    report.rows.push_back(search.row({"stream.stash=host", "optimizer.moments=int8", "train.clip=layer", "optimizer.masters=bf16-sr"}));
  for (const std::string& name : preset_names("models")) {
    PlanRequest r = request;
    r.model = with_overrides(load_model_config(name), request.run);
    r.sampling = {};
    if (r.model.codec == CodecKind::kHaar) continue;  // of another world: it has no such sizes
    const int64_t unit = 2 * r.model.spatial_stride();
    r.shapes = {latent_grid(r.model, report.num_frames, report.width / unit * unit, report.height / unit * unit, search.base().batch)};
    report.models.push_back(Search(r, stop).model());
  }
  std::stable_sort(report.models.begin(), report.models.end(), [](const FitModel& a, const FitModel& b) { return a.parameters < b.parameters; });
  return report;
}

std::string to_json(const FitReport& r) {
  nlohmann::ordered_json j{{"num_frames", r.num_frames}, {"width", r.width}, {"height", r.height}};
  for (const FitRow& row : r.rows)
    j["rows"].push_back({{"settings", row.settings}, {"num_frames", row.num_frames}, {"num_frames_step_seconds", row.num_frames_seconds},
                         {"width", row.width}, {"height", row.height}, {"size_step_seconds", row.size_seconds}});
  for (const FitModel& m : r.models)
    j["models"].push_back({{"name", m.name}, {"parameters", m.parameters}, {"fits", m.fits}, {"step_seconds", m.step_seconds}, {"num_frames", m.num_frames}});
  return j.dump();
}

std::string to_text(const FitReport& r, const PlanRequest& request) {
  std::string out = fmt::format("{} on {}, clips of {} frames of {}x{}\n\n", request.model.name, request.machine.name, r.num_frames, r.width, r.height);
  out += fmt::format("{:>16} {:>10}   {:>16} {:>10}   settings\n", "longest, frames", "s a step", "largest picture", "s a step");
  for (const FitRow& row : r.rows)
    out += fmt::format("{:>16} {:>10.4g}   {:>16} {:>10.4g}   {}\n", clip_name(row.num_frames), row.num_frames_seconds,
                       row.width ? fmt::format("{}x{}", row.width, row.height) : "none", row.size_seconds,
                       row.settings.empty() ? "as the run says" : row.settings);
  out += fmt::format("\n{:<24} {:>14} {:>6} {:>10} {:>16}\n", "other models", "parameters", "fits", "s a step", "longest, frames");
  for (const FitModel& m : r.models)
    out += fmt::format("{:<24} {:>14} {:>6} {:>10.4g} {:>16}\n", m.name, m.parameters, m.fits ? "yes" : "no", m.step_seconds, clip_name(m.num_frames));
  return out;
}

}  // namespace megaslide
