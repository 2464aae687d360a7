// Cases of kind "trainer": finetune on the seven clips of train/.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "case.h"

namespace megaslide::cases {
namespace {

namespace fs = std::filesystem;

// Encodes `count` of the clips into work()/NAME.
void make_cache(Case& c, const std::string& name, int count) {
  const std::string clips = c.copy(c.file() + "/clips", name + "-clips" + std::to_string(count));
  for (int i = count; i < 7; ++i)
    for (const char* end : {".mp4", ".txt"}) fs::remove(clips + "/k" + std::to_string(i) + end);
  c.expect_status(c.run({"encode-clips", clips, "-o", c.work(name), "--model", c.model(), "--num-frames", "5", "--size", "32x32", "-q"}), 0, "encode-clips");
}

// run.yaml after settings.json; `out` is the output directory.
std::string config(Case& c, const std::string& out) {
  const Json s = Json::parse(read_text(c.file() + "/settings.json"));
  const std::string path = c.work(out + ".yaml");
  write_text(path, "model: {path: " + c.model() + "}\ndata: {cache: cache}\ntrain: {max_train_steps: " + s.at("max_train_steps").dump() +
                       ", gradient_accumulation_steps: " + s.at("gradient_accumulation_steps").dump() + ", seed: " + s.at("seed").dump() +
                       "}\noptimizer: {learning_rate: " + s.at("learning_rate").dump() + ", lr_scheduler: " + s.at("lr_scheduler").get<std::string>() +
                       ", lr_warmup_steps: " + s.at("lr_warmup_steps").dump() + "}\noutput: {output_dir: " + out + ", save_every_n_steps: " +
                       s.at("save_every_n_steps").dump() + ", checkpoints_total_limit: 100}\n");
  return path;
}

std::vector<Json> metrics(Case& c, const std::string& out) {
  std::vector<Json> lines;
  const std::string text = read_text(c.work(out + "/metrics.jsonl"));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const Json line = Json::parse(text.substr(at, end - at), nullptr, false);
    if (line.is_object()) lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

std::string state(Case& c, const std::string& out, int step) {
  char name[40];
  std::snprintf(name, sizeof name, "/checkpoints/step-%08d", step);
  return c.run({"shard-weights", "--hash", c.work(out + name)}).out;
}

std::string folder_of_step(int step) {
  char name[40];
  std::snprintf(name, sizeof name, "/checkpoints/step-%08d", step);
  return name;
}

// Trains and kills during step 13: the checkpoint of step 10 is the last. False where the machine was too slow to hit it.
bool train_and_kill(Case& c, const std::string& out) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    fs::remove_all(c.work(out));
    RunLimits limits;
    limits.kill_when = [&] { return metrics(c, out).size() >= 12; };
    const RunResult r = c.run({"finetune", config(c, out), "-q"}, limits);
    if (r.signal == 9 && fs::exists(c.work(out + folder_of_step(10))) && !fs::exists(c.work(out + folder_of_step(15)))) return true;
  }
  return c.expect(false, "the run could not be killed between steps 12 and 15");
}

void same_steps(Case& c, const std::string& a, const std::string& b) {
  const std::vector<Json> x = metrics(c, a), y = metrics(c, b);
  if (!c.expect(x.size() == 20 && y.size() == 20, b + ": " + std::to_string(y.size()) + " steps in metrics.jsonl")) return;
  for (size_t i = 0; i < 20; ++i)
    for (const char* key : {"step", "lr", "loss", "grad_norm"}) c.expect(x[i].at(key) == y[i].at(key), "step " + std::to_string(i + 1) + ": " + key + " differs");
}

void resume_schedule(Case& c) {
  make_cache(c, "cache", 7);
  c.expect_status(c.run({"finetune", config(c, "whole"), "-q"}), 0, "finetune");
  const std::vector<Json> whole = metrics(c, "whole");
  const Json& rates = c.check().at("learning_rates");
  for (size_t i = 0; i < rates.size() && i < whole.size(); ++i)
    c.expect(std::abs(whole[i].at("lr").get<double>() - rates[i].get<double>()) < 1e-9, "learning rate of step " + std::to_string(i + 1) + " is " + whole[i].at("lr").dump());
  const std::string hash = state(c, "whole", 20);
  if (!train_and_kill(c, "killed")) return;
  c.run({"cp", "-r", c.work("killed"), c.work("rate")});
  const auto before = fs::last_write_time(c.work("killed" + folder_of_step(5)) + "/manifest.json");
  const RunResult r = c.run({"finetune", config(c, "killed"), "--resume", "latest"});
  c.expect_status(r, 0, "resume");
  c.expect(r.says("10"), "nothing says from where it resumed");
  same_steps(c, "whole", "killed");
  c.expect(!hash.empty() && state(c, "killed", 20) == hash, "the resumed state differs");
  c.expect(fs::last_write_time(c.work("killed" + folder_of_step(5)) + "/manifest.json") == before, "an old checkpoint was written again");

  const std::string rate = config(c, "rate");
  const RunResult refused = c.run({"finetune", rate, "--set", "optimizer.learning_rate=2e-5"});
  c.expect(refused.status == 2 && refused.says("learning_rate") && refused.says("0.0001") && refused.says("2e-05"), "a changed rate is not refused with both: " + refused.err);
  const RunResult allowed = c.run({"finetune", rate, "--set", "optimizer.learning_rate=2e-5", "--allow-config-change", "optimizer.learning_rate"});
  c.expect_status(allowed, 0, "an allowed change");
  c.expect(allowed.says("0.0001") && allowed.says("2e-05"), "the change is not in the log: " + allowed.both().substr(0, 300));
  const std::vector<Json> changed = metrics(c, "rate");
  c.expect(changed.size() == 20 && std::abs(changed[11].at("lr").get<double>() * 5 - whole[11].at("lr").get<double>()) < 1e-9, "the new rate has no effect");

  const RunResult longer = c.run({"finetune", config(c, "whole"), "--steps", "30"});
  c.expect((longer.status == 2 && longer.says("max_train_steps")) || longer.status == 0, "30 steps after 20: " + longer.err);
  const RunResult stretched = c.run({"finetune", config(c, "whole"), "--steps", "30", "--allow-config-change", "train.max_train_steps"});
  c.expect_status(stretched, 0, "30 steps, allowed");
  c.expect(stretched.says("max_train_steps") || stretched.says("schedule"), "the log does not say what becomes of the schedule: " + stretched.both().substr(0, 300));
  c.expect(metrics(c, "whole").size() == 30, "not 30 steps");
  c.saw("killed in step 13, resumed from 10: rates, losses, norms and state hash equal; new rate: " + allowed.line("2e-05") + "; 30 steps: " + stretched.line("max_train_steps"));
}

void accumulation_remainder(Case& c) {
  make_cache(c, "cache", 7);
  const RunResult r = c.run({"finetune", config(c, "seven"), "--set", "train.max_train_epochs=3", "--set", "train.gradient_accumulation_steps=4"});
  c.expect_status(r, 0, "3 epochs of 7 clips");
  const std::vector<Json> steps = metrics(c, "seven");
  const Json& allowed = c.check().at("steps_allowed");
  c.expect(std::find(allowed.begin(), allowed.end(), steps.size()) != allowed.end(), std::to_string(steps.size()) + " steps");
  int64_t tokens = 0;
  for (const Json& s : steps) tokens += s.at("tokens").get<int64_t>();
  const int64_t a_clip = steps.empty() ? 1 : steps[0].at("tokens").get<int64_t>() / 4;
  c.expect(tokens == a_clip * c.check().at("samples").get<int64_t>() || r.says("left over"), std::to_string(tokens / a_clip) + " samples trained, 21 expected, and nothing is said");
  fs::rename(c.work("cache"), c.work("cache7"));
  make_cache(c, "cache", 3);
  const RunResult three = c.run({"finetune", config(c, "three"), "--set", "train.max_train_epochs=1", "--set", "train.gradient_accumulation_steps=4"});
  c.expect((three.status == 0 && !metrics(c, "three").empty()) || (three.status == 2 && three.says("3") && three.says("4")), "3 clips in groups of 4: " + three.err);
  // The order of clips and the noise of a clip depend on neither, so the first gradients agree up to rounding.
  fs::rename(c.work("cache"), c.work("cache3"));
  fs::rename(c.work("cache7"), c.work("cache"));
  c.expect_status(c.run({"finetune", config(c, "a2"), "--steps", "1", "-q"}), 0, "accumulation 2");
  c.expect_status(c.run({"finetune", config(c, "b2"), "--steps", "1", "-q", "--set", "train.gradient_accumulation_steps=1", "--set", "data.batch_size=2"}), 0, "batch 2");
  const std::vector<Json> a = metrics(c, "a2"), b = metrics(c, "b2");
  if (c.expect(a.size() == 1 && b.size() == 1, "one step each")) {
    const double x = a[0].at("grad_norm"), y = b[0].at("grad_norm"), lx = a[0].at("loss"), ly = b[0].at("loss");
    // bf16 products of other shapes: 2^-8 of the norm, a fraction of it in the loss.
    c.expect(std::abs(x - y) <= 4e-3 * x && std::abs(lx - ly) <= 1e-3 * lx, "accumulation 2: norm " + std::to_string(x) + ", loss " + std::to_string(lx) + "; batch 2: " + std::to_string(y) + ", " + std::to_string(ly));
  }
  c.saw("3 epochs of 7 by 4: " + std::to_string(steps.size()) + " steps, " + std::to_string(tokens / a_clip) + " samples; 3 by 4: " + std::to_string(metrics(c, "three").size()) + " step; accumulation 2 = batch 2");
}

std::string largest_file(const std::string& folder, const std::string& but = "manifest.json") {
  std::string best;
  for (const auto& e : fs::directory_iterator(folder))
    if (e.path().filename() != but && (best.empty() || e.file_size() > fs::file_size(best))) best = e.path().string();
  return best;
}

void broken_checkpoint(Case& c) {
  make_cache(c, "cache", 7);
  c.expect_status(c.run({"finetune", config(c, "whole"), "-q"}), 0, "finetune");
  const std::string hash = state(c, "whole", 20);
  if (!train_and_kill(c, "killed")) return;
  const std::vector<std::pair<std::string, std::function<std::string(const std::string&)>>> damages = {
      {"half", [](const std::string& d) { const std::string f = largest_file(d); fs::resize_file(f, fs::file_size(f) / 2); return f; }},
      {"zero", [](const std::string& d) { const std::string f = largest_file(d); fs::resize_file(f, 0); return f; }},
      {"bit", [](const std::string& d) {
         const std::string f = largest_file(d);
         std::string bytes = read_text(f);
         bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);  // moments lie behind the weights
         write_text(f, bytes);
         return f;
       }},
      {"manifest", [](const std::string& d) { fs::remove(d + "/manifest.json"); return d + "/manifest.json"; }}};
  for (const auto& [name, damage] : damages) {
    c.run({"cp", "-r", c.work("killed"), c.work(name)});
    const std::string file = damage(c.work(name + folder_of_step(10)));
    RunResult r = c.run({"finetune", config(c, name), "--resume", "latest"});
    c.expect(r.says("step-00000010") && r.says(fs::path(file).filename().string()), name + ": the file is not named: " + r.err.substr(0, 300));
    c.saw(name + ": " + r.line("step-00000010").substr(0, 200));
    if (r.status != 0) {  // it asks
      c.expect(r.status == 1 && r.says("step-00000005"), name + ": no way on is named: " + r.err.substr(0, 300));
      r = c.run({"finetune", config(c, name), "--resume", c.work(name + folder_of_step(5))});
    }
    c.expect_status(r, 0, name);
    c.expect(state(c, name, 20) == hash, name + ": the state of an undamaged run is not reached");
  }
  c.run({"cp", "-r", c.work("killed"), c.work("full")});
  const std::string ten = state(c, "full", 10);
  RunLimits small;  // no file may reach the size of a checkpoint's: as on a disk that is full
  small.file_size = static_cast<int64_t>(fs::file_size(largest_file(c.work("full" + folder_of_step(10))))) / 2;
  const RunResult r = c.run({"finetune", config(c, "full"), "--resume", "latest"}, small);
  c.expect_status(r, 1, "a full disk");
  c.expect(!ten.empty() && state(c, "full", 10) == ten && c.run({"shard-weights", "--verify", c.work("full" + folder_of_step(10))}).status == 0, "step 10 is no longer whole");
  size_t entries = 0;
  for (const auto& e : fs::directory_iterator(c.work("full/checkpoints"))) entries += e.exists() ? 1 : 0;
  c.expect(entries == 2, "the partial checkpoint is left behind");
  c.saw("full disk: " + r.line("error").substr(0, 160));
}

}  // namespace

void add_trainer_cases(CaseTable& table) {
  table["resume-schedule"] = resume_schedule;
  table["accumulation-remainder"] = accumulation_remainder;
  table["broken-checkpoint"] = broken_checkpoint;
}

}  // namespace megaslide::cases
