// Traces of runs and of plans, read as a viewer reads them.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "config/load.h"
#include "config/search_path.h"
#include "device/trace.h"
#include "plan/planner.h"
#include "training_fixture.h"

namespace megaslide {
namespace {

using nlohmann::json;
using testing::Workplace;

struct Track {
  std::string name;
  std::vector<json> events;
};

// Checks what every trace must hold, and returns its tracks by name.
std::map<std::string, Track> tracks_of(const json& trace) {
  std::map<int, Track> by_id;
  for (const json& e : trace.at("traceEvents")) {
    const std::string kind = e.at("ph");
    if (kind == "M") {
      if (e.at("name") == "thread_name") by_id[e.at("tid")].name = e.at("args").at("name");
      continue;
    }
    EXPECT_EQ(kind, "X");
    EXPECT_FALSE(e.at("name").get<std::string>().empty());
    EXPECT_GE(e.at("ts").get<double>(), 0);
    EXPECT_GE(e.at("dur").get<double>(), 0);
    by_id[e.at("tid")].events.push_back(e);
  }
  std::map<std::string, Track> by_name;
  for (auto& [id, track] : by_id) {
    EXPECT_FALSE(track.name.empty()) << id;
    std::stable_sort(track.events.begin(), track.events.end(),
                     [](const json& a, const json& b) { return a.at("ts").get<double>() < b.at("ts").get<double>(); });
    for (size_t i = 1; i < track.events.size(); ++i) {
      const json &a = track.events[i - 1], &b = track.events[i];
      // Both figures are rounded to 0.001 µs.
      EXPECT_LE(a.at("ts").get<double>() + a.at("dur").get<double>(), b.at("ts").get<double>() + 0.0021) << track.name << ": " << a << " " << b;
    }
    by_name[track.name] = std::move(track);
  }
  return by_name;
}

void expect_steps(const Track& track, int64_t first, int64_t last) {
  ASSERT_EQ(track.events.size(), static_cast<size_t>(last - first + 1));
  for (const json& e : track.events) {
    EXPECT_EQ(e.at("name"), fmt::format("step {}", first++));
    double waited = 0;
    for (const char* what : {"wait_upload", "wait_download", "wait_optimizer", "wait_disk", "wait_data"}) {
      const double seconds = e.at("args").at(what);
      // Differences of sums of seconds: rounding may leave a little below none.
      EXPECT_GE(seconds, -1e-9) << what;
      waited += seconds;
    }
    EXPECT_LE(waited, e.at("dur").get<double>() * 1e-6 * (1 + 1e-6));
  }
}

std::set<std::string> names_of(const std::map<std::string, Track>& tracks) {
  std::set<std::string> names;
  for (const auto& [name, track] : tracks) names.insert(name);
  return names;
}

std::set<std::string> phases_of(const Track& track) {
  std::set<std::string> phases;
  for (const json& e : track.events) phases.insert(e.at("args").at("phase"));
  return phases;
}

TEST(Trace, OfTheLargestModelAsPlanned) {
  set_config_directories({MEGASLIDE_SOURCE_DIR "/configs"});
  PlanRequest r = plan_request(make_run_config({"model.path=megaslide-105b", "train.clip=layer", "stream.stash=host"}),
                               load_machine_config("h200-1.5tb"), {5, 832, 480});
  r.trace = true;
  const Plan p = make_plan(r);
  const json trace = json::parse(trace_json(p.trace, {&p.trace_step, 1}, p.phases, "plan-memory"));
  const auto tracks = tracks_of(trace);
  expect_steps(tracks.at("step"), p.trace_step.number, p.trace_step.number);
  const auto phases = phases_of(tracks.at("compute"));
  for (int64_t l = 0; l < r.model.layers; ++l)
    for (const char* pass : {"forward", "backward"}) EXPECT_TRUE(phases.contains(fmt::format("{} {}", pass, l))) << pass << l;
  EXPECT_TRUE(phases.contains("forward embedding") && phases.contains("head") && phases.contains("backward embedding"));
  int uploads = 0;
  for (const json& e : tracks.at("upload").events) uploads += e.at("name") == "upload weights";
  EXPECT_EQ(uploads, 2 * r.model.layers - 2 + 2) << "two a layer but for those in their slots, and both ends";
  EXPECT_NEAR(tracks.at("step").events[0].at("dur").get<double>() * 1e-6, p.step_seconds, 1e-6 * p.step_seconds + 1e-9);
}

TEST(Trace, OfARunHasThePlansTracks) {
  const Workplace w(AttentionKind::kDense);
  const auto run = w.run("out", {"train.max_train_steps=3", "stream.link.kind=emulated"});
  TrainerOptions o;
  o.threads = 2;
  o.trace_path = w.folder / "trace.json";
  run_training(run, o);
  std::ifstream file(o.trace_path);
  const auto real = tracks_of(json::parse(file));
  expect_steps(real.at("step"), 1, 3);
  PlanRequest r = plan_request(run, {});
  r.trace = true;
  const Plan p = make_plan(r);
  const auto planned = tracks_of(json::parse(trace_json(p.trace, {&p.trace_step, 1}, p.phases, "plan-memory")));
  EXPECT_EQ(names_of(real), names_of(planned));
  for (const char* track : {"compute", "upload", "download", "host"}) EXPECT_EQ(phases_of(real.at(track)), phases_of(planned.at(track))) << track;
}

}  // namespace
}  // namespace megaslide
