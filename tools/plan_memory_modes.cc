#include "plan_memory_modes.h"

#include <algorithm>

#include "base/atomic_file.h"
#include "base/error.h"
#include "common/output.h"
#include "config/load.h"
#include "plan/calibrate.h"
#include "plan/fit.h"
#include "plan/planner.h"

namespace megaslide {
namespace {

PlanRequest request_of(const Tool& tool, const PlanArguments& o) {
  std::vector<std::string> sets = o.sets;
  if (!o.model.empty()) sets.push_back("model.path=" + o.model);
  const RunConfig run = o.run.empty() ? make_run_config(sets) : load_run_config(o.run, sets);
  if (run.model.path.empty()) throw usage_error("no model given", "--model MODEL, or model.path in the run file");
  reject_unsupported(run);
  const bool on_gpu = tool.flags.backend() == Backend::kCuda;
  MachineConfig machine = !o.machine.empty() ? load_machine_config(o.machine)
                          : on_gpu           ? this_machine(tool.flags.threads, Backend::kCuda)
                                             : sized_like_this_machine(load_machine_config("laptop-2core"), tool.flags.threads, ".");
  if (on_gpu) machine.device = "cuda";
  return plan_request(run, machine, {o.num_frames, o.width, o.height});
}

int measure(Tool& tool, PlanArguments o) {
  if (o.out.empty()) throw usage_error("--calibrate needs -o machine.yaml");
  if (o.model.empty() && o.run.empty()) o.model = "wan2.1-t2v-1.3b", o.num_frames = 1;
  CalibrationOptions c;
  c.threads = tool.flags.threads;
  c.backend = tool.flags.backend();
  c.scratch_dir = parent_directory(o.out);
  const PlanRequest request = request_of(tool, o);
  c.model = request.model;
  c.shape = request.shapes.front();
  // What a call has.
  if (request.run.stream.slabs > 0) {
    c.shape.frames = std::min(c.shape.frames, request.run.stream.slabs);
    c.shape.times = std::min(c.shape.times, c.shape.frames);
  }
  const MachineConfig machine = calibrate(c, tool.stop);
  write_file_atomic(o.out, to_yaml(machine));
  tool.print("{}\n", tool.flags.json ? fmt::format("{{\"machine\":{}}}", json_quoted(o.out)) : o.out);
  return 0;
}

int fit(Tool& tool, const PlanArguments& o) {
  const PlanRequest request = request_of(tool, o);
  const FitReport report = find_what_fits(request, tool.stop);
  tool.write(tool.flags.json ? to_json(report) + "\n" : to_text(report, request));
  return std::any_of(report.rows.begin(), report.rows.end(), [](const FitRow& r) { return r.num_frames > 0; }) ? 0 : 3;
}

int plan(Tool& tool, const PlanArguments& o) {
  PlanRequest request = request_of(tool, o);
  request.trace = !o.trace.empty();
  const Plan p = make_plan(request, tool.stop);
  if (request.trace) write_file_atomic(o.trace, trace_json(p.trace, {&p.trace_step, 1}, p.phases, "plan-memory"));
  tool.write(tool.flags.json ? to_json(p) + "\n" : to_text(p, request));
  return p.fits() ? 0 : 3;
}

}  // namespace

int plan_memory(Tool& tool, const PlanArguments& o) {
  if (o.calibrate && o.fit) throw usage_error("--calibrate and --fit are different things", "give one of them");
  return o.calibrate ? measure(tool, o) : o.fit ? fit(tool, o) : plan(tool, o);
}

}  // namespace megaslide
