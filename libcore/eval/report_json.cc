#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "eval/report.h"
#include "io/video.h"

namespace megaslide {
namespace {

// Keys keep the order in which they are written.
using Json = nlohmann::ordered_json;

Json number(double v) {
  if (std::isnan(v)) return nullptr;
  if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
  return v;
}

Json number(const std::optional<double>& v) { return v ? number(*v) : Json(nullptr); }

std::string dump(const Json& j) { return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json dimension_json(const Evaluation& e, const DimensionResult& r) {
  Json j;
  j["raw"] = number(r.raw);
  j["normalised"] = number(r.normalised);
  j["weight"] = r.weight;
  j["n"] = r.count();
  j["skipped"] = r.skipped.size();
  j["ci95"] = r.ci95 ? Json::array({r.ci95->first, r.ci95->second}) : Json(nullptr);
  Json videos = Json::array();
  for (const ScoredVideo& v : r.videos) {
    Json one{{"path", e.videos[v.video].item.path}, {"value", number(v.value)}};
    for (const auto& [key, value] : e.videos[v.video].measures.scores.at(r.name).extra) one[key] = number(value);
    if (!r.normalised) one["reference"] = e.videos[v.video].item.reference;
    videos.push_back(std::move(one));
  }
  for (const auto& [path, value] : r.imported) videos.push_back({{"path", path}, {"value", number(value)}});
  j["videos"] = std::move(videos);
  Json skipped = Json::array();
  for (const SkippedVideo& s : r.skipped)
    skipped.push_back({{"path", e.videos[s.video].item.path}, {"reason", s.reason}});
  j["skipped_videos"] = std::move(skipped);
  Json worst = Json::array();
  for (size_t i : r.worst) worst.push_back(e.videos[i].item.path);
  j["worst"] = std::move(worst);
  j["source"] = r.imported_from.empty() ? Json("measured") : Json("imported from " + r.imported_from);
  return j;
}

Json audit_json(const NameAudit& a) {
  Json near = Json::object(), cases = Json::array();
  for (const auto& [missing, file] : a.near) near[missing] = file;
  for (const auto& [x, y] : a.differ_in_case) cases.push_back({x, y});
  return {{"expected", a.expected}, {"matched", a.matched},       {"missing", a.missing},   {"extra", a.extra},
          {"near", near},           {"duplicates", a.duplicates}, {"differ_in_case", cases}};
}

Json video_json(const EvaluatedVideo& v) {
  Json j{{"path", v.item.path}, {"prompt", v.item.prompt}};
  j["index"] = v.item.index ? Json(*v.item.index) : Json(nullptr);
  if (!v.skipped.empty()) {
    j["skipped"] = v.skipped;
    return j;
  }
  const VideoFacts& f = v.measures.facts;
  j["width"] = f.width, j["height"] = f.height, j["frames"] = f.frames;
  j["fps"] = f.fps > 0 ? Json(f.fps) : Json(nullptr);
  j["codec"] = f.codec;
  if (f.declared_frames > 0 && f.declared_frames != f.frames) j["declared_frames"] = f.declared_frames;
  Json alarms = Json::array();
  for (const Alarm& a : v.measures.alarms) alarms.push_back({{"kind", a.kind}, {"text", a.text}, {"frames", a.frames}});
  j["alarms"] = std::move(alarms);
  j["drift"] = {{"frames", v.measures.drift.gaps}, {"difference", v.measures.drift.difference}};
  return j;
}

Json provenance_json(const Evaluation& e) {
  const EvalOptions& o = e.options;
  Json j{{"program", "megaslide eval-vbench"}, {"version", megaslide_version()}, {"decoder", decoder_text(e.options)}};
  j["inputs"] = o.inputs;
  j["prompts"] = o.prompts.empty() ? Json(nullptr) : Json(o.prompts);
  j["videos_a_prompt"] = o.prompts.empty() ? Json(nullptr) : Json(o.videos_a_prompt);
  j["reference"] = o.reference.empty() ? Json(nullptr) : Json(o.reference);
  j["imports"] = o.imports;
  Json weights = Json::object();
  for (const auto& [name, n] : e.networks) weights[name] = {{"path", n.path}, {"sha256", n.sha256}, {"published_licence", n.licence}};
  j["weights"] = std::move(weights);
  if (!e.networks.empty()) {
    j["compute_dtype"] = compute_dtype_name(o);
    j["device"] = device_name(o);
  }
  j["static_filter"] = static_filter_text(o);
  j["bootstrap"] = {{"resamples", 2000}, {"seed", o.seed}, {"interval", "percentile, 95%"}};
  j["clamped"] = o.clamp;
  return j;
}

Json whole_json(const Evaluation& e) {
  Json j;
  Json dims = Json::object(), withheld = Json::object(), alarms = Json::object(), drift = Json::object(),
       videos = Json::array();
  for (const DimensionResult& r : e.dimensions) dims[r.name] = dimension_json(e, r);
  j["dimensions"] = std::move(dims);
  j["quality"] = number(e.aggregate.quality);
  j["semantic"] = number(e.aggregate.semantic);
  j["total"] = number(e.aggregate.total);
  for (const auto& [name, reason] : e.withheld) withheld[name] = reason;
  j["withheld"] = std::move(withheld);
  j["provenance"] = provenance_json(e);
  j["arithmetic"] = e.aggregate.arithmetic;
  j["audit"] = e.audit ? audit_json(*e.audit) : Json(nullptr);
  for (const auto& [kind, list] : e.alarms) {
    Json paths = Json::array();
    for (size_t i : list) paths.push_back(e.videos[i].item.path);
    alarms[kind] = std::move(paths);
  }
  j["alarms"] = std::move(alarms);
  const auto curve = mean_drift(e);
  drift["frames"] = Json::array(), drift["difference"] = Json::array();
  for (const auto& [gap, d] : curve) drift["frames"].push_back(gap), drift["difference"].push_back(d);
  j["drift"] = std::move(drift);
  for (const EvaluatedVideo& v : e.videos) videos.push_back(video_json(v));
  j["videos"] = std::move(videos);
  j["ignored"] = e.ignored;
  j["warnings"] = e.warnings;
  return j;
}

// VBench's own: {dimension: [score, [{video_path, video_results}]]}.
Json vbench_results(const Evaluation& e) {
  Json j = Json::object();
  for (const DimensionResult& r : e.dimensions) {
    if (!r.normalised) continue;
    Json list = Json::array();
    for (const ScoredVideo& v : r.videos)
      list.push_back({{"video_path", e.videos[v.video].item.path}, {"video_results", number(v.value)}});
    for (const auto& [path, value] : r.imported)
      list.push_back({{"video_path", path}, {"video_results", number(value)}});
    j[r.name] = Json::array({number(r.raw), std::move(list)});
  }
  return j;
}

// One entry a prompt with its videos, as VBench's full_info.json has it.
Json vbench_full_info(const Evaluation& e) {
  Json all = Json::array();
  std::map<std::string, size_t> at;
  for (const EvaluatedVideo& v : e.videos) {
    const auto [found, fresh] = at.emplace(v.item.prompt, all.size());
    if (fresh) {
      Json names = v.item.dimensions;
      if (v.item.dimensions.empty()) {
        names = Json::array();
        for (const DimensionResult& r : e.dimensions) {
          if (r.normalised) names.push_back(r.name);
        }
      }
      all.push_back({{"prompt_en", v.item.prompt}, {"dimension", std::move(names)}, {"video_list", Json::array()}});
    }
    all[found->second]["video_list"].push_back(v.item.path);
  }
  return all;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out(1, '"');
  for (char c : text) out.append(c == '"' ? 2 : 1, c);
  out += '"';
  return out;
}

std::string csv_number(double v) { return std::isnan(v) ? "" : fmt::format("{}", v); }

// Metrics that some video has, in the order of metric_names().
std::vector<std::string> measured_names(const Evaluation& e) {
  std::vector<std::string> names;
  for (std::string_view m : metric_names()) {
    for (const EvaluatedVideo& v : e.videos) {
      if (v.measures.scores.count(std::string(m)) == 0) continue;
      names.emplace_back(m);
      break;
    }
  }
  return names;
}

std::string videos_csv(const Evaluation& e) {
  const std::vector<std::string> names = measured_names(e);
  std::string out = "path,prompt,index,width,height,frames,fps,codec";
  for (const std::string& n : names) out += fmt::format(",{}", n);
  out += ",alarms,skipped\n";
  for (const EvaluatedVideo& v : e.videos) {
    const VideoFacts& f = v.measures.facts;
    out += fmt::format("{},{},{}", csv_field(v.item.path), csv_field(v.item.prompt),
                       v.item.index ? std::to_string(*v.item.index) : "");
    out += v.skipped.empty() ? fmt::format(",{},{},{},{},{}", f.width, f.height, f.frames,
                                           f.fps > 0 ? fmt::format("{}", f.fps) : "", f.codec)
                             : ",,,,,";
    std::string reasons = v.skipped;
    for (const std::string& n : names) {
      const auto s = v.measures.scores.find(n);
      out += ',';
      if (s != v.measures.scores.end() && s->second.value) out += csv_number(*s->second.value);
      if (s != v.measures.scores.end() && !s->second.value)
        reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", n, s->second.reason);
    }
    std::string alarms;
    for (const Alarm& a : v.measures.alarms) alarms += (alarms.empty() ? "" : "; ") + a.text;
    out += fmt::format(",{},{}\n", csv_field(alarms), csv_field(reasons));
  }
  return out;
}

void write_frames_csv(const Evaluation& e, const std::string& path) {
  const std::vector<std::string> names = measured_names(e);
  AtomicFile file(path);
  std::string block = "path,frame,seconds,brightness,from_first";
  for (const std::string& n : names) block += fmt::format(",{}", n == "temporal_flickering" ? "difference" : n);
  block += "\n";
  for (const EvaluatedVideo& v : e.videos) {
    const std::string name = csv_field(v.item.path);
    const VideoMeasures& m = v.measures;
    for (size_t i = 0; i < m.times.size(); ++i) {
      block += fmt::format("{},{},{:.6f},{:.4f},{:.6f}", name, i, m.times[i], m.brightness[i], m.drift.from_first[i]);
      for (const std::string& n : names) {
        const auto s = m.scores.find(n);
        block += ',';
        if (s != m.scores.end() && i < s->second.trace.size()) block += csv_number(s->second.trace[i]);
      }
      block += "\n";
    }
    file.write(block);
    block.clear();
  }
  file.write(block);
  file.commit();
}

}  // namespace

std::map<int64_t, double> mean_drift(const Evaluation& e) {
  std::map<int64_t, std::vector<double>> values;
  for (const EvaluatedVideo& v : e.videos) {
    for (size_t i = 0; i < v.measures.drift.gaps.size(); ++i)
      values[v.measures.drift.gaps[i]].push_back(v.measures.drift.difference[i]);
  }
  std::map<int64_t, double> means;
  for (const auto& [gap, list] : values) means[gap] = mean_of(list);
  return means;
}

std::string report_json(const Evaluation& e) { return dump(whole_json(e)); }

void require_result_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos)
    throw usage_error(fmt::format("--name {}: not the start of a file name", name), "the folder is -o");
}

void write_results(const Evaluation& e, const std::string& folder, const std::string& name) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  if (ec) throw system_error("create", folder, ec.value());
  const auto path = [&](const char* suffix) { return (std::filesystem::path(folder) / (name + suffix)).string(); };
  write_file_atomic(path("_eval_results.json"), dump(vbench_results(e)));
  write_file_atomic(path("_full_info.json"), dump(vbench_full_info(e)));
  Json provenance = provenance_json(e);
  provenance["videos"] = Json::array();
  for (const EvaluatedVideo& v : e.videos) provenance["videos"].push_back(video_json(v));
  provenance["warnings"] = e.warnings;
  write_file_atomic(path("_provenance.json"), dump(provenance));
  write_file_atomic(path(".json"), report_json(e));
  write_file_atomic(path("_videos.csv"), videos_csv(e));
  write_frames_csv(e, path("_frames.csv"));
}

}  // namespace megaslide
