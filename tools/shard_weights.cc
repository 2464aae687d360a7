// shard-weights: checkpoints as people have them to model directories, and back.
#include <CLI/CLI.hpp>

#include "common/flags.h"
#include "common/run_tool.h"
#include "shard_weights_modes.h"

using namespace megaslide;

int main(int argc, char** argv) {
  ShardArguments o;
  const ToolInfo info{.name = "shard-weights",
                      .summary = "Makes model directories from checkpoints or from nothing, exports them again, checks and describes them.",
                      .examples = {"shard-weights Wan2.1-T2V-1.3B-Diffusers -o model --dtype bf16 --attention dsa",
                                   "shard-weights wan2.1_t2v_1.3B_bf16.safetensors --vae wan_2.1_vae.safetensors -o model",
                                   "shard-weights --init tiny -o model --seed 1", "shard-weights --export wan model -o exported",
                                   "shard-weights --verify model"},
                      .flags = kThreadsFlag | kSeedFlag | kGracefulStop};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("SRC", o.source, "Checkpoint to import: folder, safetensors or PyTorch file, index; else a model directory or a checkpoint of a run")->group("Input");
    app.add_option("--vae", o.vae, "VAE that doesn't lie beside SRC: file or folder")->group("Input");
    app.add_option("--text-encoder", o.text_encoder, "UMT5 text encoder, likewise")->group("Input");
    app.add_option("--tokenizer", o.tokenizer, "Folder with the text encoder's spiece.model, likewise")->group("Input");
    app.add_option("--init", o.init, "Random weights for a preset or a model.yaml")->group("Input");
    app.add_option("-o,--output", o.out, "Model directory, or with --export a folder or a .safetensors file")->group("Output");
    add_choice(app, "--export", o.layout, {"diffusers", "wan"}, "Write the model SRC in this layout")->group("Output");
    add_choice(app, "--dtype", o.dtype, {"keep", "bf16", "fp32"}, "Type of the stored tensors (default: keep; --init: fp32)")->group("Output");
    add_choice(app, "--attention", o.attention, {"dense", "dense-materialised", "window", "dsa"}, "Self-attention of all layers")->group("Output");
    app.add_option("--attention-of", o.attention_of, "Self-attention as in this preset or model.yaml, windows by head and layer too")->group("Output");
    add_bytes(app, "--max-shard-size", o.max_shard_bytes, "Bytes a file of an export (default: 5GB)")->group("Output");
    app.add_option("--prefix", o.prefix, "Before the names of an export, such as model.diffusion_model.")->group("Output");
    app.add_flag("--overwrite", o.overwrite, "Replace what is there")->group("Output");
    app.add_flag("--info", o.info, "Describe the model SRC")->group("Instead");
    app.add_flag("--verify", o.verify, "Recompute every hash of SRC; exit 3 names the files that differ")->group("Instead");
    app.add_flag("--hash", o.hash, "One SHA-256 over all persistent state of SRC")->group("Instead");
  }, [&](Tool& tool) { return shard_weights(tool, o); });
}
