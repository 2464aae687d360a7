#include "finetune_modes.h"

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "common/output.h"
#include "config/load.h"
#include "io/open_model.h"
#include "plan/calibrate.h"
#include "plan/planner.h"
#include "train/metrics.h"
#include "train/probe.h"
#include "train/self_test.h"
#include "train/trainer.h"

namespace megaslide {
namespace {

int run_probe(Tool& tool, const FinetuneArguments& a) {
  if (a.model.empty() || a.out.empty()) throw usage_error("--probe needs --model MODEL and -o OUT.safetensors");
  // Comparisons want exact arithmetic unless told otherwise.
  const DType dtype = tool.flags.compute_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const OpenModel model(a.model);
  const double loss = probe(model.directory(), a.probe, a.out, dtype, tool.flags.threads, tool.flags.backend());
  const std::string text = std::isfinite(loss) ? fmt::format("{:.9g}", loss) : "null";
  if (tool.flags.json) tool.print("{{\"loss\":{},\"out\":{}}}\n", text, json_quoted(a.out));
  else tool.print("loss {}\n", text);
  return 0;
}

struct Scratch {
  std::string path = (std::filesystem::temp_directory_path() / "megaslide-self-test-XXXXXX").string();
  Scratch() {
    if (!mkdtemp(path.data())) throw system_error("create", path, errno, "make the temporary directory writable");
  }
  ~Scratch() {
    std::error_code ec;
    std::filesystem::remove_all(path, ec);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

constexpr int64_t kJitterRuns = 10;

int run_self_test(Tool& tool, const FinetuneArguments& a) {
  const Scratch scratch;
  SelfTestOptions options;
  options.model = a.model.empty() ? self_test_model() : model_config_of(a.model);
  options.threads = tool.flags.threads;
  options.backend = tool.flags.backend();
  options.jitter_runs = a.jitter || a.jitter_runs ? static_cast<int>(a.jitter_runs ? a.jitter_runs : kJitterRuns) : 0;
  options.scratch_dir = scratch.path;
  bool all = true;
  std::string json;
  self_test(options, [&](const SelfTestComparison& c) {
    all = all && c.equal();
    if (tool.flags.json) json += fmt::format("{}{{\"name\":\"{}\",\"equal\":{},\"hash\":\"{}\"}}", json.empty() ? "" : ",", c.name, c.equal(), c.got);
    else tool.print("{:<54} {}  {}\n", c.name, c.got.substr(0, 16), c.equal() ? "equal" : "DIFFERS from " + c.expected.substr(0, 16));
    tool.flush();
  });
  if (tool.flags.json) tool.print("{{\"comparisons\":[{}],\"equal\":{}}}\n", json, all);
  return all ? 0 : 3;
}

RunConfig complete_config(const Tool& tool, const FinetuneArguments& a) {
  if (a.config.empty()) throw usage_error("no configuration given", "finetune run.yaml; configs/train/finetune.yaml is a commented example");
  std::vector<std::string> sets = a.sets;
  if (a.steps) sets.insert(sets.end(), {fmt::format("train.max_train_steps={}", a.steps), "train.max_train_epochs=0"});
  if (!a.resume.empty()) sets.push_back("output.resume_from_checkpoint=" + a.resume);
  if (tool.flags.seed) sets.push_back(fmt::format("train.seed={}", *tool.flags.seed));
  if (!tool.flags.compute_dtype.empty()) sets.push_back("model.compute_dtype=" + tool.flags.compute_dtype);
  RunConfig run = load_run_config(a.config, sets);
  require_for_training(run);
  reject_unsupported(run);
  return run;
}

std::string summary_json(const TrainSummary& s) {
  return fmt::format(
      R"({{"first_step":{},"last_step":{},"resumed_from":{},"first_loss":{:.9g},"last_loss":{:.9g},"step_seconds":{:.9g},"tokens_per_second":{:.9g},)"
      R"("skipped":{},"device_peak_bytes":{},"host_peak_bytes":{},"checkpoint":{},"state_hash":"{}"}})",
      s.first_step, s.last_step, s.resumed_from, s.first_loss, s.last_loss, s.step_seconds, s.tokens_per_second, s.skipped, s.device_peak_bytes,
      s.host_peak_bytes, json_quoted(s.checkpoint), s.state_hash);
}

int run_training_mode(Tool& tool, const FinetuneArguments& a) {
  const RunConfig run = complete_config(tool, a);
  if (tool.flags.device == "sim") throw usage_error("--device sim computes nothing", "plan-memory runs the same schedule on sim");
  const int threads = tool.flags.threads_given || run.threads == 0 ? tool.flags.threads : static_cast<int>(run.threads);
  const int64_t program_bytes = resident_memory().now;  // before this machine is measured, which loads code
  // Without a machine file the sizes of this machine count, and MFU refers to what its matrix units reach now.
  const Backend backend = tool.flags.backend();
  MachineConfig machine = a.machine.empty() ? this_machine(threads, backend) : load_machine_config(a.machine);
  machine.device = tool.flags.device;
  PlanRequest request = plan_request(run, machine);
  request.program_bytes = program_bytes;
  const Plan plan = make_plan(request, tool.stop);
  if (!plan.fits()) throw Error(misfit_text(plan), {}, ErrorKind::kNo);
  TrainerOptions options;
  options.threads = threads;
  options.backend = backend;
  options.stop = tool.stop;
  options.trace_path = a.trace;
  options.peak_flops = machine.peak_flops;
  options.allowed_changes = a.allowed_changes;
  const TrainSummary s = run_training(run, options);
  if (tool.flags.json) {
    tool.write(summary_json(s) + "\n");
    return 0;
  }
  if (s.last_step < s.first_step) tool.print("nothing to do: {} steps are done\n", s.last_step);
  else
    tool.print("steps {} to {}, loss {:.4f} to {:.4f}, {:.0f} tokens/s, {:.4g} s a step\n", s.first_step, s.last_step, s.first_loss, s.last_loss,
               s.tokens_per_second, s.step_seconds);
  if (!s.checkpoint.empty()) tool.print("checkpoint {}\n", s.checkpoint);
  tool.print("state {}\n", s.state_hash);
  return 0;
}

}  // namespace

int finetune(Tool& tool, const FinetuneArguments& a) {
  if (a.self_test + !a.probe.empty() + !a.config.empty() > 1) throw usage_error("give one of RUN, --probe and --self-test");
  if ((a.jitter || a.jitter_runs) && !a.self_test) throw usage_error("--jitter and --jitter-runs go with --self-test");
  if (a.self_test) return run_self_test(tool, a);
  if (!a.probe.empty()) return run_probe(tool, a);
  return run_training_mode(tool, a);
}

}  // namespace megaslide
