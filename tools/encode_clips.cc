// encode-clips: clips and captions to cached latents and text rows.
#include <CLI/CLI.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "common/flags.h"
#include "common/run_tool.h"
#include "data/encode.h"
#include "data/report.h"
#include "io/open_model.h"

using namespace megaslide;

namespace {

struct Options {
  EncodeOptions run;
  std::vector<std::string> texts;
  std::string model, out, buckets, report, tensor;
  int64_t width = 0, height = 0, num_frames = 0;
  double fps = 0;
};

void declare(CLI::App& app, Options& o) {
  app.add_option("DATASET", o.run.datasets, "Folder (clips with .txt beside them), .csv, .json, .jsonl, prompts.txt+videos.txt, or a video")->group("Input");
  app.add_option("--model", o.model, "Model directory, preset name, model.yaml or foreign checkpoint")->required()->group("Input");
  app.add_option("--tensor", o.tensor, "File with video [B,3,F,H,W] in [-1,1]: encode it instead of a dataset")->group("Input");
  app.add_option("--text", o.texts, "Prompt to encode instead of a dataset; may be given several times")->group("Input")->allow_extra_args(false);
  app.add_flag("--allow-empty-captions", o.run.dataset.allow_empty_captions, "Keep clips whose caption is missing or blank")->group("Input");
  app.add_flag("--vae-tiling", o.run.parts.vae_tiling, "A learned codec takes large pictures tile by tile: less memory, slightly other latents")->group("Input");
  app.add_option("-o,--output", o.out, "Cache folder; with --tensor or --text a .safetensors file")->group("Output");
  app.add_option("--report", o.report, "HTML page with pictures of each clip")->group("Output");
  app.add_option("--pictures", o.run.pictures, "Folder for the pictures that were encoded, as PNG frames: references for samples")->group("Output");
  app.add_flag("--frame-md5", o.run.frame_md5, "Report the MD5 of each decoded RGB picture")->group("Output");
  add_integer(app, "--num-frames", o.num_frames, 1, 1 << 20, "At most this many frames a clip, 4k + 1 are used")->group("Selection");
  add_size(app, "--size", o.width, o.height, "Scale to cover WxH and cut the rest; default: the clip's own size, cut to multiples of 16")->group("Selection");
  app.add_option("--buckets", o.buckets, "File of WxHxF, WxH or F: each clip goes to the nearest shape and the longest it fills")->group("Selection");
  add_number(app, "--fps", o.fps, 0.01, 1000, "Re-time to this rate; default: each clip's own")->group("Selection");
}

int encode(Tool& tool, Options& o, const ModelParts& model, ThreadPool& pool) {
  if (o.run.datasets.empty() || o.out.empty()) throw usage_error("nothing to do: give DATASET and -o CACHE", "see encode-clips --help");
  o.run.cache = o.out;
  o.run.strips = !o.report.empty();
  const std::string buckets = o.buckets.empty() ? "" : read_text_argument(o.buckets);
  o.run.rule = make_selection_rule(model.config, o.width, o.height, o.num_frames, o.fps, buckets, o.buckets);
  const EncodeReport report = encode_dataset(o.run, model, pool, tool.stop);
  if (!o.report.empty()) write_file_atomic(o.report, report_html(report, o.run.datasets.front()));
  tool.write(tool.flags.json ? report_json(report) + "\n" : report_text(report));
  for (const std::string& w : report.warnings) log_warning("{}", w);
  log_debug("{}", stages_text(report));
  if (report.kept > 0) return 0;
  tool.flush();
  throw Error(fmt::format("no clip is left of {}", report.clips.size()), "the report names the reason of each");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  const ToolInfo info{.name = "encode-clips",
                      .summary = "Encodes clips and their captions into a cache of latents and text rows, and reports what was kept, cut, re-timed or dropped, and why.",
                      .examples = {"encode-clips clips -o cache --model tiny --size 64x64 --num-frames 17 --report report.html",
                                   "encode-clips --text \"a green tree\" --model tiny -o text.safetensors --json"},
                      .flags = kDeviceFlag | kThreadsFlag | kComputeDtypeFlag | kGracefulStop};
  return run_tool(argc, argv, info, [&](CLI::App& app) { declare(app, o); }, [&](Tool& tool) {
    const ModelParts model = open_parts(o.model);
    ThreadPool pool(tool.flags.threads);
    o.run.parts.backend = tool.flags.backend();
    if (!tool.flags.compute_dtype.empty()) o.run.parts.compute_dtype = tool.flags.compute_dtype == "bf16" ? DType::kBF16 : DType::kF32;
    if (o.tensor.empty() && o.texts.empty()) return encode(tool, o, model, pool);
    if (!o.run.datasets.empty() || (!o.tensor.empty() && !o.texts.empty()))
      throw usage_error("give only one of DATASET, --tensor and --text", "see encode-clips --help");
    if (o.out.empty() && !o.tensor.empty()) throw usage_error("where to write is missing", "give -o out.safetensors");
    if (!o.tensor.empty()) return encode_tensor_file(o.tensor, o.out, model, pool, o.run.parts), 0;
    if (const std::string json = encode_texts(o.texts, o.out, model, pool, o.run.parts); tool.flags.json || o.out.empty()) tool.write(json + "\n");
    return 0;
  });
}
