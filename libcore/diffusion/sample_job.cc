#include "diffusion/sample_job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "diffusion/prompts.h"
#include "diffusion/sample_output.h"
#include "io/contact_sheet.h"
#include "io/open_model.h"
#include "io/safetensors.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kSheetColumns = 8;

// A tensor of a file as F32, without a leading dimension of 1 beyond `rank`.
HostTensor read_tensor(const std::string& path, const std::string& name, size_t rank) {
  HostTensor tensor = read_f32(SafetensorsFile::open(path), name);
  if (tensor.shape().size() == rank + 1 && tensor.shape()[0] == 1) {
    TensorView view = tensor.view();
    view.shape.erase(view.shape.begin());
    return HostTensor::from(view);
  }
  if (tensor.shape().size() != rank)
    throw usage_error(fmt::format("{}: {} has shape {}; expected {} dimensions", path, name, to_string(tensor.shape()), rank));
  return tensor;
}

// A latent (C, T, h, w) with something in it.
HostTensor read_latent(const std::string& path, const std::string& name) {
  HostTensor latent = read_tensor(path, name, 4);
  if (latent.elements() == 0)
    throw usage_error(fmt::format("{}: {} is {}: empty", path, name, to_string(latent.shape())), "every size must be at least 1");
  return latent;
}

// Rows (S, text_dim) with S ≤ text_len, padded with zeros to text_len.
HostTensor read_text_rows(const std::string& path, const std::string& name, const ModelConfig& config) {
  const HostTensor rows = read_tensor(path, name, 2);
  if (rows.shape()[0] > config.text_len || rows.shape()[1] != config.text_dim)
    throw usage_error(fmt::format("{}: {} is {}; this model reads up to {} rows of {}", path, name, to_string(rows.shape()),
                                  config.text_len, config.text_dim));
  HostTensor padded(DType::kF32, {config.text_len, config.text_dim});
  std::copy(rows.f32(), rows.f32() + rows.elements(), padded.f32());
  return padded;
}

class Run {
 public:
  Run(const SampleJob& job, const StopToken& stop) : job_(job), stop_(stop) {}

  SampleReport go() {
    check_arguments();
    const OpenModel opened(job_.model);
    const ModelDirectory& model = opened.directory();
    if (!job_.parts.empty() && !ModelDirectory::is_one(job_.parts))
      throw usage_error(fmt::format("--parts {}: no model directory", job_.parts), "name the model that shard-weights made");
    parts_ = parts_of(model, job_.parts);
    config_ = model.config();
    settle_options();
    check_model();
    if (!job_.decode.empty()) {
      decode_file();
    } else {
      sample_all(model);
    }
    if (!job_.contact_sheet.empty()) {
      make_parent_folder(job_.contact_sheet);
      write_png(job_.contact_sheet, contact_sheet(clips_, kSheetColumns));
    }
    if (folder_ && !report_.videos.empty()) write_manifest();
    return std::move(report_);
  }

 private:
  bool wants_video() const { return !job_.out.empty() || !job_.contact_sheet.empty(); }

  void check_arguments() {
    std::vector<std::string> errors;
    const bool sampling = job_.decode.empty();
    if (job_.out.empty() && job_.latents_out.empty() && job_.trajectory_out.empty()) errors.emplace_back("nothing to write: give -o OUT or --latents-out FILE");
    if (sampling && job_.prompts.empty() && job_.text_embeds.empty()) errors.emplace_back("no prompt: give --prompt, --prompts or --text-embeds");
    if (!job_.prompts.empty() && !job_.text_embeds.empty()) errors.emplace_back("--text-embeds stands for the prompt: leave --prompt away");
    if (!sampling && (!job_.prompts.empty() || !job_.text_embeds.empty() || !job_.init_latents.empty() || !job_.latents_out.empty() || !job_.trajectory_out.empty()))
      errors.emplace_back("--decode samples nothing: prompts and latents have no place beside it");
    for (const auto& p : job_.prompts)
      if (!is_clean_utf8(p)) errors.emplace_back("a prompt is not UTF-8 text");
    if (!errors.empty()) throw usage_error(fmt::format("{}", fmt::join(errors, "\n  ")));

    sampling_.solver = parse_solver(job_.solver);
    sampling_.grid = parse_sigma_grid(job_.sigma_grid);
    folder_ = job_.prompts.size() > 1 || (job_.from_file && !job_.out.empty() && output_kind(job_.out) == OutputKind::kPictureFolder);
    check_outputs_differ();
    if (!job_.out.empty()) {
      kind_ = output_kind(job_.out);
      if (folder_ && kind_ != OutputKind::kPictureFolder)
        throw usage_error(fmt::format("{} prompts need a folder, not the file {}", job_.prompts.size(), job_.out), "give -o a name without extension");
      if (folder_ && job_.format != "png") kind_ = OutputKind::kVideoFile;
      check_writable(job_.out);
    }
    for (const auto& path : {job_.latents_out, job_.trajectory_out, job_.contact_sheet})
      if (!path.empty()) check_writable(path);
  }

  // One file would take the place of the other.
  void check_outputs_differ() const {
    std::map<fs::path, std::string> used;
    for (const auto& [flag, path] : {std::pair("-o", job_.out), {"--latents-out", job_.latents_out}, {"--trajectory-out", job_.trajectory_out}, {"--contact-sheet", job_.contact_sheet}}) {
      if (path == "-") throw usage_error(fmt::format("{} -: videos and latents do not go to standard output", flag), "name a file");
      if (path.empty()) continue;
      const auto [it, fresh] = used.emplace(fs::path(path).lexically_normal(), flag);
      if (!fresh) throw usage_error(fmt::format("{} and {} name the same file, {}", it->second, flag, path), "give each its own");
    }
  }

  void settle_options() {
    options_.num_frames = job_.num_frames.value_or(config_.num_frames);
    options_.height = job_.height.value_or(config_.height);
    options_.width = job_.width.value_or(config_.width);
    sampling_.steps = job_.steps.value_or(config_.steps);
    sampling_.flow_shift = job_.flow_shift.value_or(config_.flow_shift);
    sampling_.guidance_scale = job_.guidance_scale.value_or(config_.guidance_scale);
    sampling_.boundary = config_.boundary;
    if (config_.boundary > 0) sampling_.guidance_scale_2 = job_.guidance_scale_2.value_or(job_.guidance_scale.value_or(config_.guidance_scale_2));
    else if (job_.guidance_scale_2) throw usage_error("--guidance-scale-2: this model has one network", "leave it away");
    options_.weights = job_.weights;
    options_.parts = job_.parts;
    options_.sampling = sampling_;
    options_.compute_dtype = job_.compute_dtype;
    options_.threads = job_.threads;
    options_.backend = job_.backend;
    report_.sampling = sampling_;
    report_.fps = job_.fps.value_or(config_.fps);
    if (!job_.init_latents.empty()) adopt_init_latents();
    if (!uses_guidance(sampling_) && job_.negative_prompt && !job_.negative_prompt->empty())
      log_warning("the negative prompt is not used: --guidance-scale {} runs the conditional pass alone", sampling_.guidance_scale);
  }

  // Stored noise brings its own size; sizes that were asked for must agree.
  void adopt_init_latents() {
    const auto file = SafetensorsFile::open(job_.init_latents);
    init_ = read_latent(job_.init_latents, file.find("latents_init") || !file.find("latents") ? "latents_init" : "latents");
    const Shape& s = init_.shape();
    const int64_t frames = (s[1] - 1) * config_.temporal_stride() + 1, height = s[2] * config_.spatial_stride(),
                  width = s[3] * config_.spatial_stride();
    if (s[0] != config_.in_channels || job_.num_frames.value_or(frames) != frames || job_.height.value_or(height) != height ||
        job_.width.value_or(width) != width)
      throw usage_error(fmt::format("{}: {} is noise for {} frames of {}x{} in {} channels, which is not what was asked for",
                                    job_.init_latents, to_string(s), frames, width, height, s[0]));
    options_.num_frames = frames;
    options_.height = height;
    options_.width = width;
  }

  void check_model() const {
    if (job_.decode.empty())
      if (const auto errors = sampling_option_errors(config_, options_); !errors.empty())
        throw usage_error(fmt::format("{}", fmt::join(errors, "\n  ")));
    if (!job_.prompts.empty() && config_.text_encoder == TextEncoderKind::kNone)
      throw usage_error(fmt::format("the model '{}' comes without a text encoder", config_.name), "give the prompt's rows with --text-embeds FILE");
    if (wants_video() && config_.codec == CodecKind::kNone)
      throw usage_error(fmt::format("the model '{}' comes without a codec", config_.name), "leave -o away and write latents with --latents-out FILE");
  }

  std::string path_of(const NamedPrompt& prompt) const {
    if (!folder_) return job_.out;
    return fmt::format("{}/{}{}", job_.out, prompt.stem, job_.format == "png" ? "" : "." + job_.format);
  }

  // Writes and remembers what the contact sheet shows.
  void finish_video(const std::string& path, const HostTensor& video) {
    auto pictures = pictures_of(video);
    if (!path.empty()) write_video(path, kind_, video, pictures, report_.fps);
    if (!job_.contact_sheet.empty()) clips_.push_back(std::move(pictures));
  }

  void sample_all(const ModelDirectory& model) {
    auto prompts = name_prompts(job_.prompts);
    if (prompts.empty()) prompts.push_back({"", 0, "video-0"});  // --text-embeds
    std::vector<HostTensor> texts;  // of the prompts and, last, the negative one
    if (job_.text_embeds.empty()) {
      std::vector<std::string> wanted;
      wanted.reserve(prompts.size() + 1);
      for (const auto& p : prompts) wanted.push_back(p.prompt);
      wanted.push_back(job_.negative_prompt.value_or(default_negative_prompt(config_)));
      texts = encode_prompt_rows(parts_, wanted, job_.compute_dtype, job_.threads);
    }
    const VideoSampler sampler(model, options_);
    HostTensor negative;
    if (uses_guidance(sampling_))
      negative = job_.text_embeds.empty() ? std::move(texts.back()) : read_text_rows(job_.text_embeds, "negative_prompt_embeds", config_);
    if (folder_) make_parent_folder(job_.out + "/x");
    Progress progress("sample", static_cast<double>(prompts.size()) * static_cast<double>(sampling_.steps), "steps");
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto& prompt = prompts[i];
      const auto start = std::chrono::steady_clock::now();
      const uint64_t seed = job_.seed + static_cast<uint64_t>(prompt.repeat);
      HostTensor text = job_.text_embeds.empty() ? std::move(texts[i]) : read_text_rows(job_.text_embeds, "prompt_embeds", config_);
      HostTensor latent = sampler.sample(init_.empty() ? sampler.initial_noise(seed) : init_.clone(), text, negative, stop_,
                                         [&](int64_t, std::span<const float> x) {
                                           if (i == 0 && !job_.trajectory_out.empty()) trajectory_.insert(trajectory_.end(), x.begin(), x.end());
                                           progress.add(1, prompt.prompt.substr(0, 40));
                                         });
      if (i == 0 && !job_.trajectory_out.empty()) write_trajectory(latent.shape());
      const std::string path = job_.out.empty() ? "" : path_of(prompt);
      if (wants_video()) finish_video(path, sampler.decode(parts_, latent.view(), job_.vae_tiling));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      report_.videos.push_back({path, prompt.prompt, prompt.repeat, seed, options_.num_frames, options_.width, options_.height, seconds.count()});
      if (!job_.latents_out.empty()) latents_.push_back(std::move(latent));
    }
    progress.finish();
    if (!job_.latents_out.empty()) write_latents();
  }

  void write_trajectory(Shape shape) {
    shape.insert(shape.begin(), sampling_.steps);
    make_parent_folder(job_.trajectory_out);
    write_safetensors(job_.trajectory_out, {{"latents", {DType::kF32, shape, reinterpret_cast<const std::byte*>(trajectory_.data())}}});
    trajectory_ = {};
  }

  void write_latents() const {
    Shape shape = latents_[0].shape();
    shape.insert(shape.begin(), static_cast<int64_t>(latents_.size()));
    HostTensor all(DType::kF32, shape);
    float* to = all.f32();
    for (const auto& l : latents_) to = std::copy(l.f32(), l.f32() + l.elements(), to);
    make_parent_folder(job_.latents_out);
    write_safetensors(job_.latents_out, {{"latents", all.view()}});
  }

  void decode_file() {
    // A clip of a latent cache names its tensor `latent`.
    const bool cached = SafetensorsFile::open(job_.decode).find("latent") != nullptr;
    const HostTensor latent = read_latent(job_.decode, cached ? "latent" : "latents");
    if (!std::all_of(latent.f32(), latent.f32() + latent.elements(), [](float x) { return std::isfinite(x); }))
      throw Error(fmt::format("{}: the latent holds values that are not finite", job_.decode), "make it again; nothing can be seen in this one");
    finish_video(job_.out, decode_latent(parts_, latent.view(), job_.compute_dtype, job_.threads, job_.backend, job_.vae_tiling));
    const Shape& s = latent.shape();
    report_.videos.push_back({job_.out, "", 0, 0, (s[1] - 1) * config_.temporal_stride() + 1, s[3] * config_.spatial_stride(),
                              s[2] * config_.spatial_stride(), 0});
  }

  void write_manifest() const {
    auto list = nlohmann::ordered_json::array();
    for (const auto& v : report_.videos)
      list.push_back({{"path", fs::path(v.path).filename().string()}, {"prompt", v.prompt}, {"index", v.index}, {"seed", v.seed}});
    write_file_atomic(job_.out + "/manifest.json", list.dump(1) + "\n");
  }

  const SampleJob& job_;
  StopToken stop_;
  ModelParts parts_;
  ModelConfig config_;
  SamplingOptions sampling_;
  VideoSamplerOptions options_;
  bool folder_ = false;
  OutputKind kind_ = OutputKind::kVideoFile;  // of one video
  HostTensor init_;
  SampleReport report_;
  std::vector<HostTensor> latents_;
  std::vector<float> trajectory_;
  std::vector<std::vector<Picture>> clips_;
};

}  // namespace

std::string default_negative_prompt(const ModelConfig& model) {
  if (model.text_encoder != TextEncoderKind::kUmt5) return {};
  return "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，丑陋的，"
         "残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，静止不动的画面，杂乱的背景，"
         "三条腿，背景人很多，倒着走";
}

SampleReport run_sample_job(const SampleJob& job, const StopToken& stop) { return Run(job, stop).go(); }

std::string to_json(const SampleReport& report, const SampleJob& job) {
  nlohmann::ordered_json json;
  json["model"] = job.model;
  json["steps"] = report.sampling.steps;
  json["guidance_scale"] = report.sampling.guidance_scale;
  json["flow_shift"] = report.sampling.flow_shift;
  json["solver"] = job.solver;
  json["sigma_grid"] = job.sigma_grid;
  json["fps"] = report.fps;
  json["videos"] = nlohmann::ordered_json::array();
  for (const auto& v : report.videos)
    json["videos"].push_back({{"path", v.path}, {"prompt", v.prompt}, {"index", v.index}, {"seed", v.seed}, {"frames", v.frames},
                              {"width", v.width}, {"height", v.height}, {"seconds", v.seconds}});
  if (!job.latents_out.empty()) json["latents"] = job.latents_out;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace megaslide
