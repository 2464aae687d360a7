// eval-vbench: scores of videos in VBench's terms.
#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "common/flags.h"
#include "common/run_tool.h"
#include "eval/compare.h"
#include "eval/report.h"

using namespace megaslide;

int main(int argc, char** argv) {
  EvalOptions o;
  std::string folder, name = "results", html, a, b;
  std::vector<std::string> under;
  bool partial = false;
  CLI::App* compare = nullptr;
  const ToolInfo info{.name = "eval-vbench",
                      .summary = "Scores videos in VBench's dimensions, and against references, with what is wrong with each clip.",
                      .examples = {"eval-vbench samples --html report.html", "eval-vbench samples --reference clips --fail-under psnr=20 --json",
                                   "eval-vbench videos --weights networks --prompts VBench_full_info.json -o results",
                                   "eval-vbench compare before.json after.json"},
                      .flags = kDeviceFlag | kThreadsFlag | kSeedFlag | kGracefulStop | kComputeDtypeFlag};
  const auto setup = [&](CLI::App& app) {
    app.add_option("VIDEO", o.inputs, "Videos, folders with videos, folders of pictures (one video each), or manifests (.json, .jsonl, .csv, .txt)")
        ->group("Input");
    const auto list = [&](const char* flag, std::vector<std::string>& v, const char* text, const char* type) {
      return app.add_option(flag, v, text)->type_name(type)->allow_extra_args(false);
    };
    list("--dimension", o.dimensions, "Only this dimension; may be given several times. VBench's sixteen, psnr, ssim", "NAME")->group("Input");
    app.add_option("--prompts", o.prompts,
                   "The suite that the videos should be: VBench_full_info.json or a text with a prompt a line. Names are audited")
        ->group("Input");
    add_integer(app, "--samples", o.videos_a_prompt, 1, 1000, "Videos a prompt with --prompts, named PROMPT-0 ...; default 5")->group("Input");
    app.add_flag("--allow-partial", partial, "Exit 0 although videos of --prompts are missing")->group("Input");
    app.add_option("--reference", o.reference, "A video, or a folder with videos of the same names, to compare with: psnr and ssim")->group("Input");
    app.add_option("--weights", o.weights, "Folder with networks: dino_vitb16, clip_vit_b32, clip_vit_l14, aesthetic_head, viclip_l14, raft_things, musiq_spaq, amt_s, as .safetensors or .pth")->group("Input");
    app.add_flag("--static-filter", o.static_filter, "temporal_flickering of static videos alone, found by raft_things")->group("Input");
    app.add_flag("--compat", o.compat, "Colours by BT.601 whatever a file's tags say, as OpenCV gives them to VBench")->group("Input");
    app.add_option("--cache", o.cache, "Folder for scores of networks, so that no video is scored twice; default cache in --output")->group("Input");
    list("--import", o.imports, "Scores of other dimensions, a VBench NAME_eval_results.json; may be given several times", "FILE")->group("Input");
    app.add_option("-o,--output", folder, "Folder for the results in VBench's layout, with CSV files")->group("Output");
    app.add_option("--name", name, "Their names start with this; default results")->group("Output");
    app.add_option("--html", html, "File for a report with charts and pictures")->group("Output");
    app.add_flag("--clamp", o.clamp, "Cut normalised scores to 0..1; totals then differ from VBench's")->group("Output");
    list("--fail-under", under,
         "Exit 3 when the raw score of a dimension, or quality, semantic, total, is lower or withheld; may be given several times", "NAME=X")
        ->group("Output");
    compare = app.add_subcommand("compare", "Paired differences between two sets of scores: --json output, result folders, or videos");
    compare->add_option("A", a, "Results or videos")->required()->group("Input");
    compare->add_option("B", b, "Results or videos")->required()->group("Input");
    compare->fallthrough();
  };
  return run_tool(argc, argv, info, setup, [&](Tool& tool) {
    o.threads = tool.flags.threads;
    o.seed = tool.flags.seed.value_or(0);
    o.thumbnails = !html.empty();
    o.backend = tool.flags.backend();
    o.compute = tool.flags.compute_dtype == "bf16" ? DType::kBF16 : DType::kF32;
    if (o.cache.empty() && !folder.empty()) o.cache = (std::filesystem::path(folder) / "cache").string();
    if (compare->parsed()) {
      const ScoreSet first = load_scores(a, o, tool.stop), second = load_scores(b, o, tool.stop);
      const Comparison c = compare_scores(first, second, o.seed);
      for (const std::string& w : c.warnings) log_warning("{}", w);
      tool.write(tool.flags.json ? comparison_json(c) : comparison_text(c));
      return 0;
    }
    require_result_name(name);
    const std::vector<Threshold> thresholds = parse_thresholds(under);
    const Evaluation e = evaluate(o, tool.stop);
    for (const std::string& w : e.warnings) log_warning("{}", w);
    if (!folder.empty()) write_results(e, folder, name);
    if (!html.empty()) write_file_atomic(html, report_html(e));
    tool.write(tool.flags.json ? report_json(e) : report_text(e));
    return finish_evaluation(e, thresholds, partial);
  });
}
