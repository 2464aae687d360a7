// plan-memory: what a run will need, before it starts.
#include <CLI/CLI.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "common/flags.h"
#include "common/output.h"
#include "common/run_tool.h"
#include "config/load.h"
#include "plan/calibrate.h"
#include "plan/planner.h"

using namespace megaslide;

namespace {

struct Options {
  std::string model, machine, run, out, trace;
  std::vector<std::string> sets;
  int64_t num_frames = 0, width = 0, height = 0;
  bool calibrate = false;
};

PlanRequest request_of(const Tool& tool, const Options& o) {
  std::vector<std::string> sets = o.sets;
  if (!o.model.empty()) sets.push_back("model.path=" + o.model);
  const RunConfig run = o.run.empty() ? make_run_config(sets) : load_run_config(o.run, sets);
  if (run.model.path.empty()) throw usage_error("no model given", "--model MODEL, or model.path in the run file");
  reject_unsupported(run);
  const MachineConfig machine = o.machine.empty() ? sized_like_this_machine(load_machine_config("laptop-2core"), tool.flags.threads, ".")
                                                  : load_machine_config(o.machine);
  return plan_request(run, machine, {o.num_frames, o.width, o.height});
}

int measure(Tool& tool, Options o) {
  if (o.out.empty()) throw usage_error("--calibrate needs -o machine.yaml");
  if (o.model.empty() && o.run.empty()) o.model = "wan2.1-t2v-1.3b", o.num_frames = 1;
  CalibrationOptions c;
  c.threads = tool.flags.threads;
  c.scratch_dir = parent_directory(o.out);
  const PlanRequest request = request_of(tool, o);
  c.model = request.model;
  c.shape = request.shapes.front();
  const MachineConfig machine = calibrate(c, tool.stop);
  write_file_atomic(o.out, to_yaml(machine));
  tool.print("{}\n", tool.flags.json ? fmt::format("{{\"machine\":{}}}", json_quoted(o.out)) : o.out);
  return 0;
}

int plan(Tool& tool, const Options& o) {
  PlanRequest request = request_of(tool, o);
  request.trace = !o.trace.empty();
  const Plan p = make_plan(request, tool.stop);
  if (request.trace) write_file_atomic(o.trace, trace_json(p.trace, p.phases, "plan-memory"));
  tool.write(tool.flags.json ? to_json(p) + "\n" : to_text(p, request));
  return p.fits() ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  const ToolInfo info{.name = "plan-memory",
                      .summary = "Predicts memory, disk and time of a training run by running its schedule on a simulated device.",
                      .examples = {"plan-memory --model tiny", "plan-memory --run run.yaml --set stream.device_budget=2GiB",
                                   "plan-memory --model wan2.1-t2v-14b --machine h200-1.5tb --num-frames 81 --size 832x480",
                                   "plan-memory --calibrate --model tiny -o machine.yaml"},
                      .flags = kThreadsFlag | kGracefulStop};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("--model", o.model, "Model directory, foreign checkpoint, preset or model.yaml")->group("Input");
    app.add_option("--machine", o.machine, "Machine file or name (default: this machine's sizes, rates of laptop-2core)")->group("Input");
    app.add_option("--run", o.run, "run.yaml of the run")->group("Input");
    app.add_option("--set", o.sets, "KEY=VALUE over the run file; may be given several times")->group("Input")->allow_extra_args(false);
    add_integer(app, "--num-frames", o.num_frames, 1, 1 << 20, "Frames of a clip, 4k + 1")->group("Input");
    add_size(app, "--size", o.width, o.height, "Width and height of a clip")->group("Input");
    app.add_option("--trace", o.trace, "Write the predicted timeline for Perfetto")->group("Output");
    app.add_flag("--calibrate", o.calibrate, "Instead: measure this machine, on a block of the model at the run's size")->group("Instead");
    app.add_option("-o,--output", o.out, "With --calibrate: the machine file")->group("Output");
  }, [&](Tool& tool) { return o.calibrate ? measure(tool, o) : plan(tool, o); });
}
