// shard-weights: checkpoints as people have them to model directories, and back.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "common/flags.h"
#include "common/run_tool.h"
#include "config/load.h"
#include "io/shard.h"
#include "model/init_model.h"

using namespace megaslide;

namespace {

struct Options {
  std::string source, out, init, layout, dtype = "keep", attention;
  int64_t max_shard_bytes = 5'000'000'000;
  bool info = false, verify = false, hash = false, overwrite = false;
};

void check(const Options& o) {
  const bool reads = o.info || o.verify || o.hash;
  if (!o.init.empty() + !o.layout.empty() + o.info + o.verify + o.hash > 1)
    throw usage_error("give only one of --init, --export, --info, --verify and --hash", "see shard-weights --help");
  if (o.init.empty() && o.source.empty()) throw usage_error("nothing to work on", "give SRC, or --init; see shard-weights --help");
  if (!o.init.empty() && !o.source.empty()) throw usage_error("--init makes a model from nothing: " + o.source + " has no place", "leave it out");
  if (reads != o.out.empty()) throw usage_error(reads ? "-o has no meaning with --info, --verify and --hash" : "where to write is missing: give -o");
}

int work(Tool& tool, const Options& o) {
  check(o);
  const StoreDtype dtype = o.dtype == "bf16" ? StoreDtype::kBf16 : o.dtype == "fp32" ? StoreDtype::kFp32 : StoreDtype::kKeep;
  ThreadPool pool(tool.flags.threads);
  if (!o.init.empty()) {
    ModelConfig config = load_model_config(o.init);
    if (!o.attention.empty()) config.attention.kind = parse_attention_kind(o.attention);
    const DType stored = dtype == StoreDtype::kBf16 ? DType::kBF16 : DType::kF32;
    init_model_directory(o.out, config, tool.flags.seed.value_or(0), stored, o.overwrite, pool, tool.stop);
  } else if (!(o.info || o.verify || o.hash) && o.layout.empty()) {
    const AttentionKind kind = o.attention.empty() ? AttentionKind::kDense : parse_attention_kind(o.attention);
    import_checkpoint(o.source, o.out, {dtype, kind, o.overwrite}, tool.stop);
  }
  const auto model = [&] { return ModelDirectory::open(o.source.empty() || (!o.out.empty() && o.layout.empty()) ? o.out : o.source); };
  const auto exported = [&] {
    const WanLayout layout = o.layout == "wan" ? WanLayout::kOriginal : WanLayout::kDiffusers;
    return list_files(export_checkpoint(model(), o.out, {layout, dtype, o.max_shard_bytes, o.overwrite}, tool.stop));
  };
  const Verdict verdict = o.verify            ? verify_model(o.source, pool, tool.stop)
                          : o.hash            ? hash_model(model(), tool.stop)
                          : !o.layout.empty() ? exported()
                                              : describe_model(model());
  tool.write(tool.flags.json ? verdict.json : verdict.text);
  return verdict.good ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  const ToolInfo info{.name = "shard-weights",
                      .summary = "Makes model directories from checkpoints or from nothing, exports them again, checks and describes them.",
                      .examples = {"shard-weights Wan2.1-T2V-1.3B-Diffusers -o model --dtype bf16 --attention dsa",
                                   "shard-weights --init tiny -o model --seed 1", "shard-weights --export wan model -o exported",
                                   "shard-weights --verify model"},
                      .flags = kThreadsFlag | kSeedFlag | kGracefulStop};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("SRC", o.source, "Checkpoint to import: folder, safetensors file or index; else a model directory or a checkpoint of a run")->group("Input");
    app.add_option("--init", o.init, "Random weights for a preset or a model.yaml")->group("Input");
    app.add_option("-o,--output", o.out, "Model directory, or with --export a folder or a .safetensors file")->group("Output");
    add_choice(app, "--export", o.layout, {"diffusers", "wan"}, "Write the model SRC in this layout")->group("Output");
    add_choice(app, "--dtype", o.dtype, {"keep", "bf16", "fp32"}, "Type of the stored tensors (default: keep; --init: fp32)")->group("Output");
    add_choice(app, "--attention", o.attention, {"dense", "dense-materialised", "window", "dsa"}, "Self-attention of all layers")->group("Output");
    add_bytes(app, "--max-shard-size", o.max_shard_bytes, "Bytes a file of an export (default: 5GB)")->group("Output");
    app.add_flag("--overwrite", o.overwrite, "Replace what is there")->group("Output");
    app.add_flag("--info", o.info, "Describe the model SRC")->group("Instead");
    app.add_flag("--verify", o.verify, "Recompute every hash of SRC; exit 3 names the files that differ")->group("Instead");
    app.add_flag("--hash", o.hash, "One SHA-256 over all persistent state of SRC")->group("Instead");
  }, [&](Tool& tool) { return work(tool, o); });
}
