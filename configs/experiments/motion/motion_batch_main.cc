// motion-batch: held-out clips of make-motion-clips, noised, for finetune --probe and motion-report.
#include <CLI/CLI.hpp>

#include "common/flags.h"
#include "common/run_tool.h"
#include "io/model_directory.h"
#include "motion_batch.h"

using namespace megaslide;

int main(int argc, char** argv) {
  std::string cache, clips, model, out;
  const ToolInfo info{.name = "motion-batch",
                      .summary = "Noises every clip of a cache at five levels and adds what is known about its tokens.",
                      .examples = {"motion-batch cache --clips motion --model model -o held-out.safetensors"},
                      .flags = kSeedFlag};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("CACHE", cache, "Cache that encode-clips made of CLIPS/clips")->required()->group("Input");
    app.add_option("--clips", clips, "Folder of make-motion-clips --token")->required()->group("Input");
    app.add_option("--model", model, "Model directory of any of the models that will be measured")->required()->group("Input");
    app.add_option("-o,--output", out, "File to write")->required()->group("Output");
  }, [&](Tool& tool) {
    write_motion_batch(out, cache, clips, ModelDirectory::open(model).config(), tool.flags.seed.value_or(0));
    tool.print("{} samples in {}\n", MotionBatch::open(out).samples(), out);
    return 0;
  });
}
