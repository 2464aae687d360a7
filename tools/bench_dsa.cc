// bench-dsa: measures attention operators, and checks them against stored cases.
#include <CLI/CLI.hpp>

#include "bench_dsa_modes.h"
#include "attention_check/bench.h"
#include "attention_check/variants.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "common/flags.h"
#include "common/run_tool.h"

using namespace megaslide;

int main(int argc, char** argv) {
  BenchOptions o;
  std::vector<std::string> files, ops{"dense", "window", "dsa"};
  std::string dtype = "fp32", mode = "full", reach, instruction_set, kernel = "auto", plot;
  int64_t doublings = 0;
  bool emulated = false;
  CLI::Option* grid = nullptr;
  const ToolInfo info{.name = "bench-dsa",
                      .summary = "Measures dense, window and 3D deformable slide attention: time, FLOP/s, memory, error against fp64. "
                                 "With --check, runs a stored case through every kernel instead.",
                      .examples = {"bench-dsa --grid 5x16x16 --heads 6 --head-dim 32 --kernel 3x5x5 --backward",
                                   "bench-dsa --check full_333.safetensors"},
                      .flags = kThreadsFlag | kSeedFlag};
  const auto setup = [&](CLI::App& app) {
    grid = add_grid(app, "--grid", o.grid, "Frames, rows and columns of tokens")->group("Shape");
    add_integer(app, "--batch", o.batch, 1, 1 << 20, "Samples; default 1")->group("Shape");
    add_integer(app, "--heads", o.heads, 1, 1 << 16, "Heads; default 6")->group("Shape");
    add_integer(app, "--head-dim", o.head_dim, 1, 1 << 16, "Values a head; default 32")->group("Shape");
    add_grid(app, "--kernel", o.kernel, "Neighbourhood of dsa and size of window; default 3x7x7")->group("Operator");
    app.add_option("--reach", reach, "How far samples may move in tokens, 0 switches an axis off; default 1,2,2")->type_name("T,H,W")->group("Operator");
    add_choice(app, "--mode", mode, {"full", "slice", "rigid"}, "Offsets a sample, a frame of the window, or one for all; default full")->group("Operator");
    add_integer(app, "--groups", o.groups, 1, 1 << 16, "Offset groups; default 4, at most the heads")->group("Operator");
    app.add_option("--ops", ops, "Operators: dense, dense-materialised, window, dsa; default dense,window,dsa")->delimiter(',')->type_name("NAME,...")->group("Operator");
    add_choice(app, "--dtype", dtype, {"bf16", "fp32"}, "Type of q, k and v; default fp32")->group("Operator");
    add_choice(app, "--dsa-kernel", kernel, {"auto", "gather", "tile"}, "Kernel of dsa; default auto")->group("Operator");
    add_choice(app, "--instruction-set", instruction_set, {"amx", "avx512-bf16", "avx512", "avx2", "baseline"}, "No better one than this; with --check this one alone")->group("Operator");
    app.add_flag("--backward", o.backward, "Gradients too")->group("Measurement");
    add_integer(app, "--repeat", o.repeat, 1, 1000000, "Runs; the median counts; default 3")->group("Measurement");
    add_integer(app, "--doublings", doublings, 0, 20, "Measure with 2, 4, ... 2^N times the frames too; default 0")->group("Measurement");
    app.add_option("--plot", plot, "SVG of time and peak memory against tokens")->type_name("FILE.svg")->group("Measurement");
    app.add_option("--check", files, "A stored case, and its parameters unless they lie beside it, or a folder of cases; exit 3 where a kernel is off")
        ->expected(1, 2)->type_name("CASE.safetensors [CASE.json]")->group("Check");
    app.add_flag("--emulated-cuda", emulated, "With --check: the CUDA kernels too, run on the CPU by an emulator; slow")->group("Check");
  };
  return run_tool(argc, argv, info, setup, [&](Tool& tool) {
    if (!files.empty()) return check(tool, files, instruction_set, emulated);
    if (grid->count() == 0) throw usage_error("nothing to do", "give --grid TxHxW to measure, or --check CASE.safetensors");
    if (!reach.empty()) o.reach = parse_reach(reach);
    if (mode != "full") o.mode = mode == "slice" ? DsaOffsetMode::kSlice : DsaOffsetMode::kRigid;
    o.dtype = dtype == "bf16" ? DType::kBF16 : DType::kF32;
    o.seed = tool.flags.seed.value_or(0);
    o.threads = tool.flags.threads;
    o.groups = std::min(o.groups, o.heads);
    for (const std::string& op : ops) validate_operator(op);
    if (!instruction_set.empty()) limit_instruction_set(instruction_set);
    limit_dsa_kernel(kernel == "auto" ? DsaKernel::kAuto : kernel == "tile" ? DsaKernel::kTile : DsaKernel::kGather);
    const std::vector<BenchRow> rows = measure(tool, ops, o, doublings);
    if (!plot.empty()) write_file_atomic(plot, to_svg(rows));
    return 0;
  });
}
