#include "eval/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "eval/report.h"
#include "io/json.h"

namespace megaslide {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// The results in a folder, or "".
std::string results_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    constexpr std::string_view kSuffix = "_eval_results.json";
    if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) found.push_back(it->path().string());
  }
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    throw usage_error(fmt::format("{}: holds {} results ({}, ...)", folder, found.size(), found[0]),
                      "name one of the files");
  }
  if (found.empty()) return "";
  // The file beside it also has psnr and ssim.
  std::string whole = found[0];
  whole.replace(whole.size() - std::string_view("_eval_results.json").size(), std::string::npos, ".json");
  return fs::exists(whole, ec) ? whole : found[0];
}

PairedDifference pair_up(const std::string& dimension, const std::map<std::string, double>& a,
                         const std::map<std::string, double>& b, uint64_t seed) {
  PairedDifference d;
  d.dimension = dimension;
  std::vector<double> differences, as, bs;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end()) {
      ++d.only_a;
      continue;
    }
    if (!std::isfinite(value) || !std::isfinite(other->second)) continue;
    d.pairs.push_back({name, value, other->second});
    as.push_back(value), bs.push_back(other->second);
    differences.push_back(other->second - value);
    ++(other->second > value ? d.higher : other->second < value ? d.lower : d.equal);
  }
  for (const auto& [name, value] : b) d.only_b += a.count(name) == 0;
  d.mean_a = mean_of(as), d.mean_b = mean_of(bs), d.difference = mean_of(differences);
  d.ci95 = bootstrap_mean_ci95(differences, seed, dimension);
  return d;
}

}  // namespace

ScoreSet load_scores(const std::string& path, const EvalOptions& options, StopToken stop) {
  ScoreSet set;
  set.label = path;
  std::error_code ec;
  if (!fs::exists(path, ec))
    throw usage_error(fmt::format("{}: no such file or folder", path),
                      "compare takes results (--json output, a result folder) or videos");
  const std::string results = fs::is_directory(path, ec) ? results_in(path) : path.ends_with(".json") ? path : "";
  if (!results.empty()) {
    add_score_file(read_file(results, kMaxJsonBytes), results, set);
    return set;
  }
  EvalOptions o = options;
  o.inputs = {path};
  const Evaluation e = evaluate(o, stop);
  set.warnings = e.warnings;
  for (const DimensionResult& r : e.dimensions) {
    std::vector<std::pair<std::string, double>> list;
    for (const ScoredVideo& v : r.videos) list.emplace_back(e.videos[v.video].item.path, v.value);
    add_scores(set, r.name, list);
  }
  return set;
}

Comparison compare_scores(const ScoreSet& a, const ScoreSet& b, uint64_t seed) {
  Comparison c;
  c.a = a.label, c.b = b.label, c.seed = seed;
  c.warnings = a.warnings;
  c.warnings.insert(c.warnings.end(), b.warnings.begin(), b.warnings.end());
  for (const Dimension& d : dimensions()) {
    const std::string name(d.name);
    const auto x = a.scores.find(name), y = b.scores.find(name);
    if (x == a.scores.end() || y == b.scores.end()) continue;
    PairedDifference p = pair_up(name, x->second, y->second, seed);
    if (p.only_a + p.only_b > 0) {
      c.warnings.push_back(
          fmt::format("{}: {} videos only in {}, {} only in {}", name, p.only_a, a.label, p.only_b, b.label));
    }
    if (!p.pairs.empty()) c.dimensions.push_back(std::move(p));
  }
  if (c.dimensions.empty()) {
    throw Error(fmt::format("{} and {} have no video in common", a.label, b.label),
                "videos are paired by name: \"{prompt}-{index}\" without folder and extension");
  }
  return c;
}

std::string comparison_json(const Comparison& c) {
  Json dims = Json::object();
  for (const PairedDifference& d : c.dimensions) {
    Json pairs = Json::array();
    for (const auto& p : d.pairs) pairs.push_back({{"name", p.name}, {"a", p.a}, {"b", p.b}});
    Json j{{"mean_a", d.mean_a}, {"mean_b", d.mean_b}, {"difference", d.difference}};
    j["ci95"] = d.ci95 ? Json::array({d.ci95->first, d.ci95->second}) : Json(nullptr);
    j["n"] = d.pairs.size();
    j["higher"] = d.higher, j["lower"] = d.lower, j["equal"] = d.equal;
    j["only_a"] = d.only_a, j["only_b"] = d.only_b;
    j["pairs"] = std::move(pairs);
    dims[d.dimension] = std::move(j);
  }
  const Json j{{"a", c.a},
               {"b", c.b},
               {"dimensions", dims},
               {"bootstrap", {{"resamples", 2000}, {"seed", c.seed}}},
               {"warnings", c.warnings}};
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string comparison_text(const Comparison& c) {
  std::string out =
      fmt::format("A = {}\nB = {}\n\n{:<24} {:>10} {:>10} {:>10}  {:<24} {:>5} {:>7} {:>6} {:>6}\n", c.a, c.b,
                  "dimension", "A", "B", "B - A", "95% interval", "pairs", "higher", "lower", "equal");
  for (const PairedDifference& d : c.dimensions) {
    const std::string interval = d.ci95 ? fmt::format("{:+.6f} .. {:+.6f}", d.ci95->first, d.ci95->second) : "-";
    out += fmt::format("{:<24} {:>10} {:>10} {:>+10.6f}  {:<24} {:>5} {:>7} {:>6} {:>6}\n", d.dimension,
                       format_score(d.mean_a), format_score(d.mean_b), d.difference, interval, d.pairs.size(), d.higher,
                       d.lower, d.equal);
  }
  out += "\nPaired by name; bootstrap over pairs. An interval without 0 in it: the difference is more than chance.\n";
  return out;
}

}  // namespace megaslide
