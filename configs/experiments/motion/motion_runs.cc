#include "motion_runs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/json.h"
#include "io/model_directory.h"
#include "model/haar_codec.h"
#include "motion_scene.h"
#include "motion_track.h"
#include "train/flops.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLevels = std::ssize(kNoiseLevels);
constexpr int64_t kTrackedLevel = 3;  // of kNoiseLevels
constexpr int64_t kFirstNoisy = 2;  // of kNoiseLevels: below, what is predicted is mostly what was given

std::span<const float> floats_of(const TensorView& v) {
  return {reinterpret_cast<const float*>(v.data), static_cast<size_t>(v.elements())};
}

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream text(read_file(path, int64_t{1} << 30));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

// The pixel frames that stand for latent frames, as in TokenGrid.
std::vector<int64_t> frames_of(const MotionBatch& batch) {
  const TokenGrid grid{batch.frames(), batch.height(), batch.width(), {}};
  std::vector<int64_t> frames;
  for (int64_t t = 0; t < grid.frames; ++t) frames.push_back(grid.frame_of(t));
  return frames;
}

HostTensor decoded(ThreadPool& pool, std::span<const float> latent, const Shape& shape) {
  return HaarCodec().decode(pool, {DType::kF32, shape, reinterpret_cast<const std::byte*>(latent.data())});
}

void add_track(TrackScores& scores, const Track& track) {
  const auto residual = path_residual(track);
  scores.found.add(residual ? 1 : 0);
  if (!residual) return;
  scores.residual.add(*residual);
  if (const auto step = mean_step(track)) scores.step.add(*step);
}

// Where the middle of a surface's pixels is, in each of the frames; nothing where too few are in view.
Track true_track(const std::string& truth, int64_t surface, std::span<const int64_t> frames) {
  const SafetensorsFile file = SafetensorsFile::open(truth + ".safetensors");
  const TensorView v = file.view("surface");
  const int64_t height = v.shape.at(1), width = v.shape.at(2);
  Track track;
  for (const int64_t t : frames) {
    MeanOf h, w;
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x)
        if (static_cast<int64_t>(v.data[(t * height + y) * width + x]) == surface) h.add(static_cast<double>(y) + 0.5), w.add(static_cast<double>(x) + 0.5);
    if (h.count < kFewestPixels) track.emplace_back();
    else track.push_back(Place{h.mean(), w.mean()});
  }
  return track;
}

// The held-out clips as their makers know them: sprites that can be tracked, and where they are.
struct KnownClip {
  std::string caption;
  std::vector<CaptionSprite> sprites;
  std::vector<Track> tracks;  // one a sprite
};
struct KnownClips {
  std::vector<KnownClip> clips;
  double saturation = 1;
  std::vector<int64_t> frames;
};

KnownClips read_clips(const MotionBatch& batch, const std::string& folder) {
  KnownClips known;
  known.frames = frames_of(batch);
  for (int64_t i = 0; i < batch.clips(); ++i) {
    const std::string truth = fmt::format("{}/held-out/truth/clip-{:05}", folder, i);
    const nlohmann::json j = read_json(truth + ".json");
    known.saturation = j.at("saturation").get<double>();
    KnownClip& clip = known.clips.emplace_back();
    clip.caption = j.at("caption").get<std::string>();
    clip.sprites = trackable_sprites(clip.caption);
    for (const CaptionSprite& s : clip.sprites) clip.tracks.push_back(true_track(truth, s.surface, known.frames));
  }
  return known;
}

// Scores what a latent of the clip shows against where its sprites are.
void add_tracks(TrackScores& scores, ThreadPool& pool, std::span<const float> latent, const Shape& shape, const KnownClips& known, const KnownClip& clip) {
  const HostTensor video = decoded(pool, latent, shape);
  for (size_t i = 0; i < clip.sprites.size(); ++i) {
    const Track track = track_colour(video.view(), clip.sprites[i].colour, known.saturation, known.frames);
    add_track(scores, track);
    for (size_t t = 0; t < track.size(); ++t)
      if (track[t] && clip.tracks[i][t]) scores.error.add(std::hypot(track[t]->h - clip.tracks[i][t]->h, track[t]->w - clip.tracks[i][t]->w));
  }
}

void read_metrics(MotionRun& run, const std::string& path) {
  std::vector<double> seconds;
  MeanOf start;
  for (const std::string& line : lines_of(path)) {
    const nlohmann::json j = parse_json(line, path);
    const bool finite = j.at("loss").is_number() && !j.at("skipped").get<bool>();
    run.finite = run.finite && finite;
    if (finite && start.count < 5) start.add(j.at("loss").get<double>());
    seconds.push_back(j.at("seconds").get<double>());
    if (!j.contains("validation_loss")) continue;
    run.finite = run.finite && j.at("validation_loss").is_number();
    if (!j.at("validation_loss").is_number()) continue;
    run.steps.push_back(j.at("step").get<double>());
    run.validation.push_back(j.at("validation_loss").get<double>());
  }
  if (seconds.empty()) throw Error(path + ": no step", "train the run again");
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  run.step_seconds = seconds[seconds.size() / 2];
  run.start = start.mean();
}

void read_predictions(MotionRun& run, ThreadPool& pool, const MotionBatch& batch, const KnownClips& known, const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const TensorView out = file.view("out");
  if (out.dtype != DType::kF32) throw Error(path + ": out is not F32", "make it with finetune --probe");
  const auto all = floats_of(out);
  run.losses = token_losses(batch, all);
  const size_t n = all.size() / static_cast<size_t>(batch.samples());
  MeanOf still, tracked;
  for (int64_t s = 0; s < batch.samples(); ++s) {
    if (s % kLevels < kFirstNoisy) continue;
    const std::vector<float> clean = batch.clean(s, all.subspan(static_cast<size_t>(s) * n, n));
    if (s % kLevels == kTrackedLevel) add_tracks(run.predicted_tracks, pool, clean, batch.latent_shape(), known, known.clips[static_cast<size_t>(s / kLevels)]);
    still.add(still_cosine(clean, batch.latent_shape()));
    const MeanOf cosine = tracked_cosine(batch, s, clean);
    tracked.sum += cosine.sum, tracked.count += cosine.count;
  }
  run.predicted_still = still.mean(), run.predicted_tracked = tracked.mean();
}

void read_samples(MotionRun& run, ThreadPool& pool, const MotionBatch& batch, const std::vector<std::string>& prompts, const KnownClips& known, const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const TensorView all = file.view("latents");
  Shape expected = batch.latent_shape();
  expected.insert(expected.begin(), std::ssize(prompts));
  if (all.dtype != DType::kF32 || all.shape != expected) throw Error(fmt::format("{}: latents {} are not those of the prompts, {}", path, to_string(all.shape), to_string(expected)), "sample again");
  MeanOf still;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const size_t n = floats_of(all).size() / prompts.size();
    const auto latent = floats_of(all).subspan(i * n, n);
    still.add(still_cosine(latent, batch.latent_shape()));
    const HostTensor video = decoded(pool, latent, batch.latent_shape());
    for (const CaptionSprite& sprite : trackable_sprites(prompts[i])) add_track(run.samples, track_colour(video.view(), sprite.colour, known.saturation, known.frames));
  }
  run.sample_still = still.mean();
}

MotionTruthScores read_truth(ThreadPool& pool, const MotionBatch& batch, const std::vector<std::string>& prompts, const KnownClips& known) {
  MotionTruthScores scores;
  scores.prompts = std::ssize(prompts), scores.clips = batch.clips();
  MeanOf still, tracked, sample_still;
  for (int64_t i = 0; i < batch.clips(); ++i) {
    const std::vector<float> clean = batch.clean(i * kLevels, batch.velocity(i * kLevels));
    still.add(still_cosine(clean, batch.latent_shape()));
    const MeanOf cosine = tracked_cosine(batch, i * kLevels, clean);
    tracked.sum += cosine.sum, tracked.count += cosine.count;
    const KnownClip& clip = known.clips[static_cast<size_t>(i)];
    add_tracks(scores.all_tracks, pool, clean, batch.latent_shape(), known, clip);
    if (i >= std::ssize(prompts)) continue;
    if (clip.caption != prompts[static_cast<size_t>(i)]) throw Error(fmt::format("line {} of prompts.txt is not the caption of held-out clip {}", i + 1, i), "make the experiment's clips again");
    sample_still.add(still_cosine(clean, batch.latent_shape()));
    add_tracks(scores.tracks, pool, clean, batch.latent_shape(), known, clip);
  }
  scores.still = still.mean(), scores.tracked = tracked.mean(), scores.sample_still = sample_still.mean();
  return scores;
}

size_t place_of(const std::string& variant) {
  return static_cast<size_t>(std::ranges::find(kVariants, variant) - std::begin(kVariants));
}

}  // namespace

double attention_flops(const ModelConfig& model, int64_t frames, int64_t height, int64_t width) {
  BatchShape shape;
  shape.frames = frames, shape.height = height, shape.width = width, shape.context_rows = model.text_len;
  // Against attention to one token, of which 4C is known.
  ModelConfig alone = model;
  alone.attention.kind = AttentionKind::kWindow;
  alone.attention.per_layer.clear();
  alone.attention.window = {1, 1, 1};
  const double layers = static_cast<double>(model.layers * shape.tokens());
  return (forward_flops(model, shape) - forward_flops(alone, shape)) / layers + 4 * static_cast<double>(model.dim);
}

MotionExperiment read_experiment(const std::string& folder) {
  MotionExperiment e;
  ThreadPool pool(1);
  const MotionBatch batch = MotionBatch::open(folder + "/held-out.safetensors");
  const std::vector<std::string> prompts = lines_of(folder + "/prompts.txt");
  const KnownClips known = read_clips(batch, folder);
  e.truth = read_truth(pool, batch, prompts, known);
  e.tokens = batch.tokens();
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder + "/runs", none)) {
    const std::string path = entry.path().string(), name = entry.path().filename().string();
    const size_t dash = name.rfind('-');
    if (dash == std::string::npos || !fs::exists(path + "/metrics.jsonl") || !fs::exists(path + "/latest")) continue;
    MotionRun run;
    run.variant = name.substr(0, dash);
    run.seed = std::stoll(name.substr(dash + 1));
    read_metrics(run, path + "/metrics.jsonl");
    run.attention_flops = attention_flops(ModelDirectory::open(path + "/model").config(), batch.frames(), batch.height(), batch.width());
    if (fs::exists(path + "/predicted.safetensors")) read_predictions(run, pool, batch, known, path + "/predicted.safetensors");
    if (fs::exists(path + "/samples.safetensors")) read_samples(run, pool, batch, prompts, known, path + "/samples.safetensors");
    if (!run.steps.empty()) e.steps = std::max(e.steps, static_cast<int64_t>(run.steps.back()));
    e.runs.push_back(std::move(run));
  }
  if (e.runs.empty()) throw Error(folder + "/runs: no finished run", "make the experiment first");
  std::ranges::sort(e.runs, {}, [](const MotionRun& r) { return std::tuple(place_of(r.variant), r.variant, r.seed); });
  return e;
}

}  // namespace megaslide
