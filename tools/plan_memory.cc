// plan-memory: what a run will need, before it starts.
#include <CLI/CLI.hpp>

#include "common/flags.h"
#include "common/run_tool.h"
#include "plan_memory_modes.h"

using namespace megaslide;

int main(int argc, char** argv) {
  PlanArguments o;
  const ToolInfo info{.name = "plan-memory",
                      .summary = "Predicts memory, disk and time of a training run by running its schedule on a simulated device.",
                      .examples = {"plan-memory --model tiny", "plan-memory --run run.yaml --set stream.device_budget=2GiB",
                                   "plan-memory --model wan2.1-t2v-14b --machine h200-1.5tb --num-frames 81 --size 832x480",
                                   "plan-memory --fit --model wan2.1-t2v-14b --machine rtx4090-128gb",
                                   "plan-memory --calibrate --model tiny -o machine.yaml"},
                      .flags = kDeviceFlag | kThreadsFlag | kGracefulStop};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("--model", o.model, "Model directory, foreign checkpoint, preset or model.yaml")->group("Input");
    app.add_option("--machine", o.machine, "Machine file or name (default: this machine's sizes, rates of laptop-2core)")->group("Input");
    app.add_option("--run", o.run, "run.yaml of the run")->group("Input");
    app.add_option("--set", o.sets, "KEY=VALUE over the run file; may be given several times")->group("Input")->allow_extra_args(false);
    add_integer(app, "--num-frames", o.num_frames, 1, 1 << 20, "Frames of a clip, 4k + 1")->group("Input");
    add_size(app, "--size", o.width, o.height, "Width and height of a clip")->group("Input");
    app.add_option("--trace", o.trace, "Write the predicted timeline for Perfetto")->group("Output");
    app.add_flag("--fit", o.fit, "Instead: the longest clip, the largest picture and the models that fit")->group("Instead");
    app.add_flag("--calibrate", o.calibrate, "Instead: measure this machine, on a block of the model at the run's size")->group("Instead");
    app.add_option("-o,--output", o.out, "With --calibrate: the machine file")->group("Output");
  }, [&](Tool& tool) { return plan_memory(tool, o); });
}
