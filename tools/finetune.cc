// finetune: trains all parameters of a model, its state in host memory.
#include <filesystem>

#include <CLI/CLI.hpp>

#include "finetune_modes.h"
#include "common/flags.h"
#include "common/run_tool.h"
#include "config/load.h"

using namespace megaslide;

int main(int argc, char** argv) {
  FinetuneArguments a;
  const ToolInfo info{.name = "finetune",
                      .summary = "Fine-tunes all parameters of a video diffusion transformer: layers are streamed to the device, state stays on the host.",
                      .examples = {"finetune run.yaml", "finetune run.yaml --set optimizer.learning_rate=1e-4 --steps 500",
                                   "finetune --probe batch.safetensors --model model -o gradients.safetensors", "finetune --self-test"},
                      .flags = kDeviceFlag | kComputeDtypeFlag | kThreadsFlag | kSeedFlag | kGracefulStop};
  const auto setup = [&](CLI::App& app) {
    app.add_option("RUN", a.config, "Configuration of the run, run.yaml; - for standard input")->group("Input");
    app.add_option("--set", a.sets, "KEY=VALUE over the file, checked alike; may be given several times")->group("Input")->allow_extra_args(false);
    add_integer(app, "--steps", a.steps, 1, int64_t{1} << 40, "train.max_train_steps")->group("Input");
    app.add_option("--resume", a.resume, "latest, none, or a checkpoint folder")->group("Input");
    app.add_option("--allow-config-change", a.allowed_changes, "KEY that may differ from the checkpoint's run; may be given several times")
        ->group("Input")->allow_extra_args(false);
    app.add_option("--machine", a.machine, "Machine file or name, for the plan and for MFU")->group("Input");
    app.add_option("--trace", a.trace, "Write a Perfetto trace of the run")->group("Output");
    app.add_option("-o,--output", a.out, "With --probe: where outputs and gradients go")->group("Output");
    app.add_option("--probe", a.probe, "Instead: one forward and backward on a file with latent, timesteps, text and target")->group("Instead");
    app.add_flag("--self-test", a.self_test, "Instead: equal state hashes for every schedule, thread count and resume; exit 3 on a difference")->group("Instead");
    app.add_flag("--jitter", a.jitter, "With --self-test: also under random delays")->group("Instead");
    add_integer(app, "--jitter-runs", a.jitter_runs, 1, 1000000, "With --self-test: so many runs under random delays (--jitter: 10)")->group("Instead");
    app.add_option("--model", a.model, "Model of --probe and --self-test")->group("Instead");
  };
  return run_tool(argc, argv, info, setup, [&](Tool& tool) { return finetune(tool, a); });
}
