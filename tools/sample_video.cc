// sample-video: videos from prompts.
#include <CLI/CLI.hpp>

#include "common/flags.h"
#include "common/run_tool.h"
#include "diffusion/prompts.h"
#include "diffusion/sample_job.h"

using namespace megaslide;

int main(int argc, char** argv) {
  SampleJob job;
  std::string prompt_file;
  int64_t num_frames = 0, height = 0, width = 0, steps = 0;
  double guidance_scale = 0, guidance_scale_2 = 0, flow_shift = 0, fps = 0;
  std::string weights = "auto";
  ToolInfo info{.name = "sample-video",
                .summary = "Samples videos from prompts with a model directory or a checkpoint.",
                .examples = {"sample-video model --prompt \"a green tree sways in the wind\" -o tree.mp4",
                             "sample-video model --prompts prompts.txt -o samples --contact-sheet samples.png"},
                .flags = kDeviceFlag | kComputeDtypeFlag | kThreadsFlag | kSeedFlag | kGracefulStop};
  const auto setup = [&](CLI::App& app) {
    app.add_option("MODEL", job.model, "Model directory or checkpoint")->required()->group("Input");
    app.add_option("--parts", job.parts, "Model directory with VAE, text encoder and second network, where it is not the one MODEL was trained from")->group("Input");
    app.add_option("--prompt", job.prompts, "Prompt; may be given several times")->group("Input")->allow_extra_args(false);
    app.add_option("--prompts", prompt_file, "File with a prompt a line, - for standard input; lines that start with # are comments")->group("Input");
    app.add_option("--negative-prompt", job.negative_prompt, "What guidance leads away from; default: Wan's own text for models with UMT5, else nothing")->group("Input");
    app.add_option("--text-embeds", job.text_embeds, "File with prompt_embeds and negative_prompt_embeds, instead of prompts")->group("Input");
    app.add_option("--init-latents", job.init_latents, "File with the initial noise, latents_init")->group("Input");
    app.add_option("--decode", job.decode, "File with latents: decode them and sample nothing")->group("Input");
    app.add_option("-o,--output", job.out, "FILE.mp4, .webm, .gif, .safetensors, or a folder: PNG frames of one video, or several videos")->group("Output");
    add_choice(app, "--format", job.format, {"mp4", "webm", "gif", "png"}, "Of the videos in a folder")->group("Output");
    app.add_option("--latents-out", job.latents_out, "File for the final latents, normalised")->group("Output");
    app.add_option("--trajectory-out", job.trajectory_out, "File for the latents after each step of the first video")->group("Output");
    app.add_option("--contact-sheet", job.contact_sheet, "PNG with a row of pictures a video")->group("Output");
    add_number(app, "--fps", fps, 1, 240, "Pictures a second of the file")->group("Output");
    add_integer(app, "--num-frames", num_frames, 1, 1 << 20, "Frames, 4k + 1")->group("Sampling");
    add_size(app, "--size", width, height, "Width and height, WxH")->group("Sampling");
    add_integer(app, "--width", width, 1, 1 << 20, "Width alone")->group("Sampling");
    add_integer(app, "--height", height, 1, 1 << 20, "Height alone")->group("Sampling");
    add_integer(app, "--steps", steps, 1, 1000, "Sampling steps")->group("Sampling");
    add_number(app, "--guidance-scale", guidance_scale, 1, 1000, "Classifier-free guidance; 1: none")->group("Sampling");
    add_number(app, "--guidance-scale-2", guidance_scale_2, 1, 1000, "Guidance of the low-noise network, where the model has two")->group("Sampling");
    add_number(app, "--flow-shift", flow_shift, 1e-3, 1000, "Shift of the noise levels")->group("Sampling");
    add_choice(app, "--solver", job.solver, {"unipc", "euler"}, "Solver")->group("Sampling");
    add_choice(app, "--weights", weights, {"auto", "memory", "disk"}, "Where the weights are while sampling; disk: read layer by layer in each step")->group("Sampling");
    app.add_flag("--vae-tiling", job.vae_tiling, "A learned codec takes large pictures tile by tile: less memory, slightly other pictures")->group("Sampling");
    add_choice(app, "--sigma-grid", job.sigma_grid, {"diffusers", "wan", "clean"}, "Grid of noise levels")->group("Sampling");
  };
  return run_tool(argc, argv, info, setup, [&](Tool& tool) {
    if (!prompt_file.empty()) {
      const auto lines = parse_prompts(read_text_argument(prompt_file), prompt_file == "-" ? "standard input" : prompt_file);
      job.prompts.insert(job.prompts.end(), lines.begin(), lines.end());
      job.from_file = true;
    }
    const auto set = [](auto& field, auto value) { if (value > 0) field = value; };
    set(job.num_frames, num_frames);
    set(job.height, height);
    set(job.width, width);
    set(job.steps, steps);
    set(job.guidance_scale, guidance_scale);
    set(job.guidance_scale_2, guidance_scale_2);
    set(job.flow_shift, flow_shift);
    set(job.fps, fps);
    job.weights = parse_weight_place(weights);
    job.seed = tool.flags.seed.value_or(0);
    job.threads = tool.flags.threads;
    job.backend = tool.flags.backend();
    if (tool.flags.compute_dtype == "fp32") job.compute_dtype = DType::kF32;
    const SampleReport report = run_sample_job(job, tool.stop);
    if (tool.flags.json) tool.write(to_json(report, job));
    else for (const auto& v : report.videos) tool.print("{}\n", v.path.empty() ? job.latents_out : v.path);
    return 0;
  });
}
