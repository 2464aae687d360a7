// Cases of kinds "planner" and "evaluation".
#include <algorithm>
#include <cmath>

#include "case.h"

namespace megaslide::cases {
namespace {

bool has(const Json& list, const std::string& text) { return std::find(list.begin(), list.end(), text) != list.end(); }
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void plan_does_not_fit(Case& c) {
  const Json plan = Json::parse(read_text(c.file()));
  const std::string budget = "stream.host_budget=" + plan.at("host_gib").dump() + "GiB";
  const std::vector<std::string> presets = {"wan2.1-t2v-1.3b", "wan2.1-t2v-14b"};
  for (size_t i = 0; i < presets.size(); ++i) {
    const RunResult r = c.run({"plan-memory", "--model", presets[i], "--machine", "rtx4090-128gb", "--set", budget, "--num-frames", "1", "--size", "832x480", "--json"});
    c.expect_status(r, c.check().at("exit")[i], presets[i]);
    const Json j = r.json();
    if (!c.expect(j.is_object(), "no plan")) continue;
    const Json& host = j.at("host");
    const int64_t state = host.at("weights").get<int64_t>() + host.at("masters").get<int64_t>() + host.at("moments").get<int64_t>() + host.at("gradients").get<int64_t>();
    // 2 bytes of weight, 2 of master, 8 of moments, 2 of gradient a parameter; the program's buffers are padded by tensor.
    const int64_t exact = c.check().at("state_bytes")[i];
    c.expect(j.at("parameters") == plan.at(presets[i]).at("parameters") && 14 * j.at("parameters").get<int64_t>() == exact, presets[i] + ": " + j.at("parameters").dump() + " parameters");
    c.expect(state >= exact && static_cast<double>(state) < 1.0001 * static_cast<double>(exact), presets[i] + ": " + std::to_string(state) + " bytes of state");
    if (r.status == 3) {
      const RunResult text = c.run({"plan-memory", "--model", presets[i], "--machine", "rtx4090-128gb", "--set", budget, "--num-frames", "1", "--size", "832x480"});
      c.expect(text.says("allowed") && text.says("needed"), "no shortfall: " + text.both().substr(0, 300));
      c.expect(text.says("it fits with") || text.says("larger machine"), "no way out: " + text.both().substr(0, 300));
    }
    c.saw(presets[i] + ": " + std::to_string(state) + " bytes, exit " + std::to_string(r.status));
  }
  // The preset has no codec of its own; with one, clips can be encoded for it without its weights.
  write_text(c.work("14b.yaml"), "name: wan2.1-t2v-14b\ndim: 5120\nheads: 40\nffn_dim: 13824\nlayers: 40\nattention: dense\ncodec: haar\ntext_encoder: hashed-ngram\n");
  c.expect_status(c.run({"encode-clips", c.data() + "/train/clips", "-o", "cache", "--model", "14b.yaml", "--num-frames", "5", "--size", "32x32", "-q"}), 0, "encode-clips");
  write_text(c.work("run.yaml"), "model: {path: 14b.yaml}\ndata: {cache: cache}\noutput: {output_dir: run}\n");
  const RunResult r = c.run({"finetune", "run.yaml", "--set", budget}, {.seconds = 60, .address_space = 0});
  c.expect(r.status == 3 || r.status == 2, "finetune on 14B: exit " + std::to_string(r.status) + " signal " + std::to_string(r.signal));
  c.expect(r.says("does not fit") && r.says("68719476736 bytes"), r.err);
  c.saw("finetune: " + r.err.substr(0, 160));
}

void eval_names(Case& c) {
  const std::vector<std::string> command = {"eval-vbench", c.file() + "/videos", "--prompts", c.file() + "/prompts.json", "--samples", "2", "--json"};
  const RunResult r = c.run(command);
  c.expect(r.status != 0, "exit 0 although videos are missing");
  const Json j = r.json();
  if (!c.expect(j.is_object() && j.at("audit").is_object(), "no audit")) return;
  const Json& audit = j.at("audit");
  c.expect(audit.at("expected") == 8 && audit.at("matched") == c.check().at("matched"), audit.dump());
  for (const char* key : {"missing", "extra"})
    for (const Json& name : c.check().at(key)) c.expect(has(audit.at(key), name), name.dump() + " is not " + key);
  for (const auto& [name, near] : c.check().at("near").items()) c.expect(near == audit.at("near").value(name, ""), "near name of " + name);
  bool in_case = false;
  for (const Json& group : audit.at("differ_in_case")) in_case = in_case || (has(group, "A fantasy landscape") && has(group, "a fantasy landscape"));
  c.expect(in_case, "names that differ only in case are not flagged");
  for (const auto& [name, d] : j.at("dimensions").items())
    if (d.at("n").is_number() && d.at("n") != 0) c.expect(d.at("n") == c.check().at("matched"), name + ": n = " + d.at("n").dump());
  for (const char* word : {"nan", "NaN", "0it", "inf"}) c.expect(r.out.find(std::string(": ") + word) == std::string::npos, std::string(word) + " in the result");
  std::vector<std::string> partial = command;
  partial.push_back("--allow-partial");
  c.expect_status(c.run(partial), 0, "--allow-partial");
  c.saw("6 of 8 matched; missing, extra, near and case as written; exit " + std::to_string(r.status) + ", 0 with --allow-partial; n = 6");
}

void eval_mixed(Case& c) {
  const RunResult r = c.run({"eval-vbench", c.file(), "--dimension", "temporal_flickering", "--json"});
  c.expect_status(r, 0, "eval-vbench");
  const Json j = r.json();
  if (!c.expect(j.is_object(), "no scores")) return;
  const Json& d = j.at("dimensions").at("temporal_flickering");
  double worst = 0;
  for (const Json& v : d.at("videos")) {
    const Json& want = c.check().at("scores").at(name_of(v.at("path")));
    worst = std::max(worst, std::abs(v.at("value").get<double>() - want.get<double>()));
  }
  const double tolerance = c.check().at("tolerance");
  c.expect(d.at("videos").size() == 4 && worst <= tolerance, "scores are off by " + std::to_string(worst));
  c.expect(std::abs(d.at("raw").get<double>() - c.check().at("mean").get<double>()) <= tolerance && d.at("n") == c.check().at("n"), "mean " + d.at("raw").dump());
  c.expect(d.at("skipped") == 1 && d.at("skipped_videos").size() == 1 && c.check().at("skipped")[0] == name_of(d.at("skipped_videos")[0].at("path")) && d.at("skipped_videos")[0].at("reason") == "n/a: needs at least 2 frames",
           d.at("skipped_videos").dump());
  const Json frozen = j.at("alarms").value("frozen", Json::array());
  c.expect(frozen.size() == 1 && name_of(frozen[0]) == "still.mkv", "no frozen-clip alarm");
  c.expect(r.says("mixed sizes") && r.says("mixed frame rates") && r.says("160x120") && r.says("24 fps"), "no warning of mixed sizes and rates");
  char text[120];
  std::snprintf(text, sizeof text, "four scores within %.1e, mean %.8f, n = 4, skipped one.mkv, still.mkv frozen, mixed sizes and rates listed", worst, d.at("raw").get<double>());
  c.saw(text);
}

}  // namespace

void add_evaluation_cases(CaseTable& table) {
  table["plan-does-not-fit"] = plan_does_not_fit;
  table["eval-names"] = eval_names;
  table["eval-mixed"] = eval_mixed;
}

}  // namespace megaslide::cases
