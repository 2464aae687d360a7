// bench-dsa: measures attention operators, and checks them against stored cases.
#include <CLI/CLI.hpp>

#include "attention_check/bench.h"
#include "attention_check/check.h"
#include "base/error.h"
#include "common/flags.h"
#include "common/run_tool.h"

using namespace megaslide;

namespace {

int check(Tool& tool, const std::vector<std::string>& files) {
  InlineStream stream(tool.flags.threads);
  const StoredCase c = load_stored_case(files[0], files.size() > 1 ? files[1] : case_json_path(files[0]));
  bool ok = true;
  for (const KernelCheck& result : check_case(c, stream)) {
    tool.print("{}\n", to_json_line(result));
    ok = ok && result.ok;
  }
  return ok ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions o;
  std::vector<std::string> files, ops{"dense", "window", "dsa"};
  std::string dtype = "fp32", mode = "full", reach;
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
    app.add_flag("--backward", o.backward, "Gradients too")->group("Measurement");
    add_integer(app, "--repeat", o.repeat, 1, 1000000, "Runs; the median counts; default 3")->group("Measurement");
    app.add_option("--check", files, "A stored case, and its parameters unless they lie beside it; exit 3 where a kernel is off")
        ->expected(1, 2)->type_name("CASE.safetensors [CASE.json]")->group("Check");
  };
  return run_tool(argc, argv, info, setup, [&](Tool& tool) {
    if (!files.empty()) return check(tool, files);
    if (grid->count() == 0) throw usage_error("nothing to do", "give --grid TxHxW to measure, or --check CASE.safetensors");
    if (!reach.empty()) o.reach = parse_reach(reach);
    if (mode != "full") o.mode = mode == "slice" ? DsaOffsetMode::kSlice : DsaOffsetMode::kRigid;
    o.dtype = dtype == "bf16" ? DType::kBF16 : DType::kF32;
    o.seed = tool.flags.seed.value_or(0);
    o.threads = tool.flags.threads;
    o.groups = std::min(o.groups, o.heads);
    for (const std::string& op : ops) validate_operator(op);
    if (!tool.flags.json) tool.print("{}\n", table_header());
    for (const std::string& op : ops) {
      const BenchRow row = bench_operator(op, o);
      tool.print("{}\n", tool.flags.json ? to_json_line(row) : to_table_line(row));
      tool.flush();
    }
    return 0;
  });
}
