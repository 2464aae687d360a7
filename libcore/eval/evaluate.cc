#include "eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "diffusion/device_memory.h"
#include "eval/import.h"
#include "eval/score_cache.h"
#include "eval/weights.h"
#include "io/video.h"

namespace megaslide {
namespace {

constexpr size_t kWorst = 5;
constexpr int kStaticVideos = 5;

// Which videos are among the worst five of a metric so far: only their thumbnails stay in memory. The final set does
// not depend on the order of arrival, ties go to the lower index.
class WorstKeeper {
 public:
  void add(std::vector<EvaluatedVideo>& videos, size_t i) {
    const std::lock_guard lock(mutex_);
    bool kept = false;
    for (const auto& [name, score] : videos[i].measures.scores) {
      if (!score.value) continue;
      auto& worst = worst_[name];
      worst.emplace(*score.value, i);
      kept = true;
      if (worst.size() <= kWorst) continue;
      const size_t out = std::prev(worst.end())->second;
      worst.erase(std::prev(worst.end()));
      drop_unless_kept(videos, out);
    }
    if (!kept) drop_unless_kept(videos, i);
  }

 private:
  void drop_unless_kept(std::vector<EvaluatedVideo>& videos, size_t i) {
    for (const auto& [name, worst] : worst_) {
      if (std::any_of(worst.begin(), worst.end(), [&](const auto& w) { return w.second == i; })) return;
    }
    videos[i].measures.thumbnails = {};
  }

  std::mutex mutex_;
  std::map<std::string, std::set<std::pair<double, size_t>>> worst_;
};

bool applies(const VideoItem& item, const std::string& dimension) {
  const Dimension* d = find_dimension(dimension);
  return item.dimensions.empty() || d->family == DimensionFamily::kReference ||
         std::find(item.dimensions.begin(), item.dimensions.end(), dimension) != item.dimensions.end();
}

// What all videos share.
struct Shared {
  std::vector<std::string> metrics;
  const EvalNetworks& networks;
  ScoreCache cache;
  bool thumbnails;
  VideoColour colour;
  bool static_filter;
};

// Scores of networks that are known; the others stay in `options.metrics`. Gives the keys under which to keep those.
std::map<std::string, std::string> take_known_scores(const EvaluatedVideo& v, const Shared& shared, MeasureOptions& options, std::map<std::string, Score>& known) {
  std::map<std::string, std::string> keys;
  std::string content;
  std::erase_if(options.metrics, [&](const std::string& name) {
    if (!shared.cache.keeps() || networks_of(name, options.context).empty()) return false;
    if (content.empty()) content = video_content_hash(v.item.path) + (shared.colour == VideoColour::kBt601 ? " bt601" : "");
    const std::string key = score_key(content, name, shared.networks, options.context);
    if (std::optional<Score> score = shared.cache.find(key)) {
      known.emplace(name, std::move(*score));
      return true;
    }
    keys.emplace(name, key);
    return false;
  });
  return keys;
}

void measure_one(EvaluatedVideo& v, const Shared& shared, ThreadPool& pool) {
  MeasureOptions options;
  options.thumbnails = shared.thumbnails;
  options.context = {&shared.networks, v.item.prompt, v.item.style, 0, shared.static_filter};
  options.open_again = [&] { return open_video(v.item.path, shared.colour); };
  for (const std::string& m : shared.metrics) {
    if (applies(v.item, m)) options.metrics.push_back(m);
  }
  try {
    std::map<std::string, Score> known;
    const std::map<std::string, std::string> keys = take_known_scores(v, shared, options, known);
    const std::unique_ptr<VideoReader> reader = open_video(v.item.path, shared.colour);
    OpenVideo open;
    if (!v.item.reference.empty()) open = [&] { return open_video(v.item.reference, shared.colour); };
    v.measures = measure_video(*reader, open, options, pool);
    for (const auto& [name, key] : keys) shared.cache.store(key, v.measures.scores.at(name));
    v.measures.scores.merge(known);
  } catch (const Error& e) {
    v.skipped = e.message();
    const std::string prefix = v.item.path + ": ";
    if (v.skipped.rfind(prefix, 0) == 0) v.skipped.erase(0, prefix.size());
  } catch (const std::bad_alloc&) {
    v.skipped = "not enough memory to decode it";
  }
}

void measure_all(Evaluation& e, const Shared& shared, ThreadPool& pool, const StopToken& stop) {
  Progress progress("evaluate", static_cast<double>(e.videos.size()), "videos");
  WorstKeeper keeper;
  std::mutex mutex;
  // With fewer videos than threads the threads work inside a video (SSIM).
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (stop.requested()) return;
      EvaluatedVideo& v = e.videos[static_cast<size_t>(i)];
      measure_one(v, shared, pool);
      keeper.add(e.videos, static_cast<size_t>(i));
      const std::lock_guard lock(mutex);
      progress.add(1, v.item.path);
    }
  };
  const int64_t n = static_cast<int64_t>(e.videos.size());
  if (n < pool.size()) {
    run(0, n);
  } else {
    pool.parallel_for(n, 1, run);
  }
  progress.finish();
  stop.throw_if_requested();
}

DimensionResult collect(const Evaluation& e, const std::string& name) {
  DimensionResult r;
  r.name = name;
  const Dimension& dimension = *find_dimension(name);
  r.weight = dimension.weight;
  std::vector<double> values, weights;
  // VBench's filter keeps so many of a prompt.
  std::map<std::string, int> static_videos;
  const bool filtered = e.options.static_filter && name == "temporal_flickering";
  for (size_t i = 0; i < e.videos.size(); ++i) {
    const EvaluatedVideo& v = e.videos[i];
    if (!applies(v.item, name)) continue;
    const auto found = v.measures.scores.find(name);
    static const Score kNone{std::nullopt, "n/a"};
    const Score& score = found == v.measures.scores.end() ? kNone : found->second;
    if (!v.skipped.empty()) {
      r.skipped.push_back({i, v.skipped});
    } else if (!score.value) {
      r.skipped.push_back({i, score.reason});
    } else if (filtered && ++static_videos[v.item.prompt] > kStaticVideos) {
      r.skipped.push_back({i, fmt::format("beyond the first {} static videos of its prompt", kStaticVideos)});
    } else {
      r.videos.push_back({i, *score.value});
      values.push_back(*score.value);
      weights.push_back(score.weight);
    }
  }
  const double scale = dimension.video_scale;
  r.raw = weighted_mean(values, weights) / scale;
  r.ci95 = bootstrap_mean_ci95(values, e.options.seed, name, weights);
  if (r.ci95) r.ci95 = {r.ci95->first / scale, r.ci95->second / scale};
  std::vector<ScoredVideo> order = r.videos;
  std::stable_sort(order.begin(), order.end(),
                   [](const ScoredVideo& a, const ScoredVideo& b) { return a.value < b.value; });
  for (size_t i = 0; i < std::min(kWorst, order.size()); ++i) r.worst.push_back(order[i].video);
  return r;
}

DimensionResult from_import(const std::string& name, const ImportedScore& s, uint64_t seed) {
  DimensionResult r;
  r.name = name;
  r.raw = s.raw;
  r.weight = find_dimension(name)->weight;
  r.imported_from = s.file;
  r.imported = s.videos;
  std::vector<double> values;
  for (const auto& [path, v] : s.videos) values.push_back(v);
  r.ci95 = bootstrap_mean_ci95(values, seed, name);
  return r;
}

// "96x64: 4 videos, 160x120: 1 video" for a property that should be one.
template <class Key>
std::string mixed(const std::map<Key, size_t>& counts) {
  std::string out;
  for (const auto& [key, n] : counts)
    out += fmt::format("{}{} ({} video{})", out.empty() ? "" : ", ", key, n, n == 1 ? "" : "s");
  return out;
}

void warn_mixed(Evaluation& e) {
  std::map<std::string, size_t> sizes, rates;
  std::map<int64_t, size_t> frames;
  for (const EvaluatedVideo& v : e.videos) {
    if (!v.skipped.empty()) continue;
    const VideoFacts& f = v.measures.facts;
    ++sizes[fmt::format("{}x{}", f.width, f.height)];
    if (f.fps > 0) ++rates[fmt::format("{:.4g} fps", f.fps)];
    ++frames[f.frames];
  }
  const char* advice = "; scores of such a set are no fair mean";
  if (sizes.size() > 1) e.warnings.push_back(fmt::format("mixed sizes: {}{}", mixed(sizes), advice));
  if (rates.size() > 1) e.warnings.push_back(fmt::format("mixed frame rates: {}{}", mixed(rates), advice));
  if (frames.size() > 1 && frames.size() <= 12)
    e.warnings.push_back(fmt::format("mixed frame counts: {}{}", mixed(frames), advice));
  if (frames.size() > 12)
    e.warnings.push_back(
        fmt::format("mixed frame counts: {} to {}{}", frames.begin()->first, frames.rbegin()->first, advice));
}

void prepare_videos(Evaluation& e) {
  InputSet set = collect_inputs(e.options.inputs);
  e.ignored = std::move(set.ignored);
  e.warnings.insert(e.warnings.end(), set.warnings.begin(), set.warnings.end());
  if (set.items.empty()) {
    const std::string remedy = "name video files, a folder with videos or frame folders, or a manifest";
    if (e.options.inputs.empty()) throw usage_error("no video is named", remedy);
    throw Error(fmt::format("no video in {}", fmt::join(e.options.inputs, ", ")), remedy);
  }
  if (!e.options.prompts.empty()) {
    const std::vector<PromptEntry> prompts = read_prompts(e.options.prompts);
    e.audit = audit_names(set.items, prompts, e.options.videos_a_prompt);
  }
  if (!e.options.reference.empty()) {
    for (const std::string& path : assign_references(set.items, e.options.reference)) {
      e.warnings.push_back(fmt::format("{}: no video of this name in {}", path, e.options.reference));
    }
  }
  for (VideoItem& item : set.items) e.videos.push_back({std::move(item), {}, {}});
}

// The dimensions to report: what was asked for, else all of VBench, and psnr and ssim where there are references.
std::vector<std::string> wanted_dimensions(const Evaluation& e) {
  const bool references =
      std::any_of(e.videos.begin(), e.videos.end(), [](const EvaluatedVideo& v) { return !v.item.reference.empty(); });
  std::vector<std::string> names;
  for (const Dimension& d : dimensions()) {
    const std::string name(d.name);
    const bool asked =
        std::find(e.options.dimensions.begin(), e.options.dimensions.end(), name) != e.options.dimensions.end();
    if (e.options.dimensions.empty() ? d.family != DimensionFamily::kReference || references : asked)
      names.push_back(name);
  }
  return names;
}

void score_dimensions(Evaluation& e, const std::vector<std::string>& wanted,
                      const std::map<std::string, ImportedScore>& imports, const WeightsReport& weights) {
  for (const Dimension& d : dimensions()) {
    const std::string name(d.name);
    const auto imported = imports.find(name);
    const bool asked = std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    if (asked && weights.serves(d)) {
      DimensionResult r = collect(e, name);
      if (!r.videos.empty()) {
        if (imported != imports.end())
          e.warnings.push_back(
              fmt::format("{}: measured here; the imported {:g} is not used", name, imported->second.raw));
        e.dimensions.push_back(std::move(r));
        continue;
      }
      if (imported == imports.end()) {
        e.withheld[name] = r.skipped.empty() ? "no video of the set belongs to it"
                                             : fmt::format("{}no video has a score: {}", e.options.static_filter && name == "temporal_flickering" ? "insufficient: " : "", r.skipped[0].reason);
        continue;
      }
    }
    if (imported != imports.end()) {
      e.dimensions.push_back(from_import(name, imported->second, e.options.seed));
    } else if (asked) {
      e.withheld[name] = weights.reason(d);
    }
  }
}

void finish_totals(Evaluation& e) {
  std::map<std::string, double> raw;
  for (const DimensionResult& r : e.dimensions) {
    if (std::isfinite(r.raw)) raw[r.name] = r.raw;
  }
  e.aggregate = aggregate_scores(raw, e.options.clamp);
  for (DimensionResult& r : e.dimensions) {
    const auto n = e.aggregate.normalised.find(r.name);
    if (n != e.aggregate.normalised.end()) r.normalised = n->second;
  }
  for (const auto& [name, reason] : e.aggregate.withheld) e.withheld[name] = reason;
  for (const std::string& name : e.aggregate.outside) {
    e.warnings.push_back(fmt::format("{}: normalised score outside 0..1, {}", name,
                                     e.options.clamp ? "clamped" : "not clamped, as upstream"));
  }
  if (e.options.clamp) e.warnings.push_back("normalised scores are clamped: totals differ from VBench's own");
}

}  // namespace

const DimensionResult* Evaluation::find(const std::string& name) const {
  for (const DimensionResult& r : dimensions) {
    if (r.name == name) return &r;
  }
  return nullptr;
}

Evaluation evaluate(const EvalOptions& options, StopToken stop) {
  Evaluation e;
  e.options = options;
  for (const std::string& name : options.dimensions) require_dimension(name);
  const WeightsReport weights = inspect_weights(options.weights, e.warnings);
  const auto imports = import_scores(options.imports, e.warnings);
  prepare_videos(e);
  const std::vector<std::string> wanted = wanted_dimensions(e);
  std::vector<std::string> metrics;
  for (const std::string& name : wanted)
    if (weights.serves(*find_dimension(name))) metrics.push_back(name);
  const int threads = std::max(1, options.threads);
  ThreadPool pool(threads);
  PartDevice device(options.backend, threads);
  const EvalNetworks networks(weights, metrics, options.compute, pool, options.static_filter, device.memory());
  e.networks = networks.used();
  measure_all(e, {metrics, networks, options.cache.empty() ? ScoreCache() : ScoreCache(options.cache), options.thumbnails,
                  options.compat ? VideoColour::kBt601 : VideoColour::kTagged, options.static_filter},
              pool, stop);
  for (size_t i = 0; i < e.videos.size(); ++i) {
    const EvaluatedVideo& v = e.videos[i];
    if (!v.skipped.empty()) e.warnings.push_back(fmt::format("{}: skipped: {}", v.item.path, v.skipped));
    for (const std::string& w : v.measures.warnings) e.warnings.push_back(fmt::format("{}: {}", v.item.path, w));
    for (const Alarm& a : v.measures.alarms) e.alarms[a.kind].push_back(i);
  }
  warn_mixed(e);
  score_dimensions(e, wanted, imports, weights);
  finish_totals(e);
  return e;
}

Threshold parse_threshold(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string help = "write DIMENSION=NUMBER, as in temporal_flickering=0.95";
  if (equals == std::string::npos) throw usage_error(fmt::format("--fail-under {}: no \"=\"", text), help);
  Threshold t{text.substr(0, equals), 0};
  if (t.name != "quality" && t.name != "semantic" && t.name != "total") require_dimension(t.name);
  try {
    size_t used = 0;
    const std::string number = text.substr(equals + 1);
    t.least = std::stod(number, &used);
    if (used != number.size() || !std::isfinite(t.least)) throw std::invalid_argument(number);
  } catch (const std::exception&) {
    throw usage_error(fmt::format("--fail-under {}: \"{}\" is no number", text, text.substr(equals + 1)), help);
  }
  return t;
}

std::vector<Threshold> parse_thresholds(const std::vector<std::string>& texts) {
  std::vector<Threshold> all;
  all.reserve(texts.size());
  for (const std::string& t : texts) all.push_back(parse_threshold(t));
  return all;
}

std::vector<std::string> failed_thresholds(const Evaluation& e, const std::vector<Threshold>& thresholds) {
  std::vector<std::string> failed;
  for (const Threshold& t : thresholds) {
    std::optional<double> value;
    if (t.name == "quality") {
      value = e.aggregate.quality;
    } else if (t.name == "semantic") {
      value = e.aggregate.semantic;
    } else if (t.name == "total") {
      value = e.aggregate.total;
    } else if (const DimensionResult* r = e.find(t.name)) {
      value = r->raw;
    }
    const auto why = e.withheld.find(t.name);
    if (!value) {
      failed.push_back(
          fmt::format("{} >= {:g}: withheld{}", t.name, t.least, why == e.withheld.end() ? "" : ": " + why->second));
    } else if (!(*value >= t.least)) {
      failed.push_back(fmt::format("{} = {:.6f} is under {:g}", t.name, *value, t.least));
    }
  }
  return failed;
}

int finish_evaluation(const Evaluation& e, const std::vector<Threshold>& thresholds, bool allow_partial) {
  if (e.dimensions.empty()) {
    std::vector<std::string> reasons;
    for (const Dimension& d : dimensions()) {
      const auto w = e.withheld.find(std::string(d.name));
      if (w != e.withheld.end() && (d.missing.empty() || !e.options.dimensions.empty()))
        reasons.push_back(fmt::format("{}: {}", w->first, w->second));
    }
    throw Error(fmt::format("no score could be computed{}{}", reasons.empty() ? "" : ": ", fmt::join(reasons, "; ")));
  }
  int status = 0;
  for (const std::string& line : failed_thresholds(e, thresholds)) {
    log_warning("--fail-under: {}", line);
    status = 3;
  }
  if (e.audit && !e.audit->complete() && !allow_partial) {
    log_warning(
        "the set is not what the prompts ask for: {} of {} videos found, {} extra; --allow-partial accepts that",
        e.audit->matched, e.audit->expected, e.audit->extra.size() + e.audit->duplicates.size());
    status = 3;
  }
  return status;
}

std::string megaslide_version() { return MEGASLIDE_VERSION; }

}  // namespace megaslide
