// A small model and a small cache in a temporary folder, and runs over them.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "../io/temporary_folder.h"
#include "config/load.h"
#include "data/cache.h"
#include "diffusion/flow_matching.h"
#include "model/init_model.h"
#include "train/trainer.h"

namespace megaslide::testing {

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

struct Workplace {
  TemporaryFolder folder;
  ModelConfig config;

  // `latents`: shapes (C, T, h, w) of the clips of the cache.
  explicit Workplace(AttentionKind kind = AttentionKind::kDsa,
                     const std::vector<Shape>& latents = {{16, 3, 8, 8}, {16, 3, 8, 8}, {16, 3, 8, 8}, {16, 2, 8, 4}, {16, 2, 8, 4}})
      : config(small_model(kind)) {
    ThreadPool pool(2);
    init_model_directory(folder / "model", config, 5, DType::kF32, false, pool);
    std::filesystem::create_directories(folder / "cache/clips");
    std::vector<CachedClip> clips;
    for (size_t i = 0; i < latents.size(); ++i) {
      HostTensor latent(DType::kF32, latents[i]), text(DType::kF32, {static_cast<int64_t>(2 + i % 3), config.text_dim});
      fill_normal({latent.f32(), static_cast<size_t>(latent.elements())}, 1, RandomPurpose::kTest, i);
      // Something to learn: a value a channel and clip, with a little noise.
      for (int64_t k = 0; k < latent.elements(); ++k)
        latent.f32()[k] = 0.1f * latent.f32()[k] + std::sin(static_cast<float>(k / (latent.elements() / latents[i][0])) + static_cast<float>(i));
      fill_normal({text.f32(), static_cast<size_t>(text.elements())}, 2, RandomPurpose::kTest, i);
      CachedClip c;
      c.key = "clip" + std::to_string(i);
      c.path = c.key + ".mp4";
      c.caption = c.key;
      c.latent = latents[i];
      c.text_rows = text.shape()[0];
      c.frames = 4 * (latents[i][1] - 1) + 1;
      c.width = latents[i][3] * 4;
      c.height = latents[i][2] * 4;
      c.fps = 8;
      write_cached_clip(folder / "cache", c.key, latent.view(), text.view(), {});
      clips.push_back(c);
    }
    write_cache_index(folder / "cache", cache_identity(config), clips);
  }

  RunConfig run(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> sets{"model.path=" + (folder / "model"), "data.cache=" + (folder / "cache"), "output.output_dir=" + (folder / output),
                                  "train.max_train_steps=6", "data.batch_size=2", "optimizer.learning_rate=0.002", "train.seed=4"};
    sets.insert(sets.end(), more.begin(), more.end());
    return make_run_config(sets);
  }
};

inline TrainSummary train(const RunConfig& run, int threads = 2) {
  TrainerOptions o;
  o.threads = threads;
  return run_training(run, o);
}

}  // namespace megaslide::testing
