// A small model and a small cache in a temporary folder, and runs over them.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/temporary_folder.h"
#include "tests/support/error_text.h"
#include "base/error.h"
#include "base/log.h"
#include "config/load.h"
#include "data/cache.h"
#include "diffusion/flow_matching.h"
#include "model/init_model.h"
#include "train/trainer.h"

namespace megaslide::testing {

using testing_support::TemporaryFolder;

inline ModelConfig small_model(AttentionKind kind = AttentionKind::kDsa) {
  ModelConfig c;
  c.name = "small";
  c.dim = 64;
  c.heads = 2;
  c.ffn_dim = 128;
  c.layers = 3;
  c.text_dim = 32;
  c.text_len = 8;
  c.freq_dim = 64;
  c.attention.kind = kind;
  c.attention.dsa = {{3, 3, 3}, {1, 1, 1}, DsaMode::kFull, 2};
  c.attention.window = {2, 2, 2};
  c.codec = CodecKind::kHaar;
  c.text_encoder = TextEncoderKind::kHashedNgram;
  c.num_frames = 9;
  c.height = c.width = 32;
  c.flow_shift = 3;
  return c;
}

// A cache of clips with latents of these shapes (C, T, h, w); the clips of another `first` are other clips.
inline void write_small_cache(const std::string& path, const ModelConfig& config, const std::vector<Shape>& latents, size_t first = 0) {
  std::filesystem::create_directories(path + "/clips");
  std::vector<CachedClip> clips;
  for (size_t k = 0; k < latents.size(); ++k) {
    const size_t i = first + k;
    HostTensor latent(DType::kF32, latents[k]), text(DType::kF32, {static_cast<int64_t>(2 + i % 3), config.text_dim});
    fill_normal({latent.f32(), static_cast<size_t>(latent.elements())}, 1, RandomPurpose::kTest, i);
    // Something to learn: a value a channel and clip, with a little noise.
    for (int64_t e = 0; e < latent.elements(); ++e) {
      const int64_t channel = e / (latent.elements() / latents[k][0]);
      latent.f32()[e] = 0.1f * latent.f32()[e] + std::sin(static_cast<float>(channel) + static_cast<float>(i));
    }
    fill_normal({text.f32(), static_cast<size_t>(text.elements())}, 2, RandomPurpose::kTest, i);
    CachedClip c;
    c.key = "clip" + std::to_string(i);
    c.path = c.key + ".mp4";
    c.caption = c.key;
    c.latent = latents[k];
    c.text_rows = text.shape()[0];
    c.frames = 4 * (latents[k][1] - 1) + 1;
    c.width = latents[k][3] * 4;
    c.height = latents[k][2] * 4;
    c.fps = 8;
    write_cached_clip(path, c.key, latent.view(), text.view(), {});
    clips.push_back(c);
  }
  write_cache_index(path, cache_identity(config), clips);
}

struct Workplace {
  TemporaryFolder folder;
  ModelConfig config;

  // `latents`: shapes (C, T, h, w) of the clips of the cache.
  explicit Workplace(AttentionKind kind = AttentionKind::kDsa,
                     const std::vector<Shape>& latents = {{16, 3, 8, 8}, {16, 3, 8, 8}, {16, 3, 8, 8}, {16, 2, 8, 4}, {16, 2, 8, 4}})
      : config(small_model(kind)) {
    ThreadPool pool(2);
    init_model_directory(folder / "model", config, 5, DType::kF32, false, pool);
    write_small_cache(folder / "cache", config, latents);
  }

  RunConfig run(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> sets{"model.path=" + (folder / "model"), "data.cache=" + (folder / "cache"), "output.output_dir=" + (folder / output),
                                  "train.max_train_steps=6", "data.batch_size=2", "optimizer.learning_rate=0.002", "train.seed=4"};
    sets.insert(sets.end(), more.begin(), more.end());
    return make_run_config(sets);
  }
};

// What is logged while `work` runs.
inline std::string log_of(auto&& work) {
  std::string log;
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) { log += text + "\n"; });
  work();
  set_log_sink(before);
  return log;
}

using testing_support::error_of;

inline TrainSummary train(const RunConfig& run, int threads = 2) {
  TrainerOptions o;
  o.threads = threads;
  return run_training(run, o);
}

}  // namespace megaslide::testing
