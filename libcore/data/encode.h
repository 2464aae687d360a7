// A whole dataset to a latent cache.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/stop.h"
#include "base/thread_pool.h"
#include "data/clip.h"
#include "data/dataset.h"
#include "data/selection.h"
#include "io/video.h"
#include "model/model_parts.h"

namespace megaslide {

struct EncodeOptions {
  std::vector<std::string> datasets;
  std::string cache;               // folder; made when missing
  SelectionRule rule;
  DatasetOptions dataset;
  bool frame_md5 = false;          // decodes every clip, also those that are in the cache
  std::string pictures;            // folder for the pictures that were encoded, a folder of PNG frames a clip; decodes every clip
  int64_t thumbnails = 0;          // pictures a clip for the report, decoded from the latents that were cached
};

struct ClipReport {
  std::string path, place, caption;
  ClipFacts facts;
  std::string key;                 // in the cache; empty when dropped
  bool reused = false;             // the latent was there already
  std::vector<std::string> md5;
  std::string pictures;            // folder of PNG frames, when asked for
  std::vector<Picture> thumbnails;
};

struct EncodeReport {
  std::vector<ClipReport> clips;      // in the dataset's order
  std::vector<std::string> warnings;  // of the dataset, then of clips as "PATH: ..."
  int64_t kept = 0, dropped = 0;      // kept: all that are not dropped
  int64_t encoded = 0;                // latents made by this run
};

// The rule for a model: `width`, `height`, `num_frames`, `fps` as given on the command line, 0 where not given.
// Buckets are parsed from `buckets_text` when `buckets_name` is not empty.
SelectionRule make_selection_rule(const ModelConfig& model, int64_t width, int64_t height, int64_t num_frames, double fps,
                                  const std::string& buckets_text = {}, const std::string& buckets_name = {});

// A bad clip costs no other. Writes the cache's index when at least one clip is kept. Errors: the dataset cannot be
// read at all, or the cache cannot be written. When `stop` asks, what was encoded stays and Stopped is thrown.
EncodeReport encode_dataset(const EncodeOptions& options, const ModelParts& parts, ThreadPool& pool, StopToken stop = {});

// encode-clips --tensor: `video` [B, 3, F, H, W] of any float type to mean, logvar, mean_normalised [B, C, T, h, w].
void encode_tensor_file(const std::string& input, const std::string& output, const ModelParts& parts, ThreadPool& pool);

// encode-clips --text: embeds.<i> F32 [text_len, text_dim] and ids.<i> I64 [n]; returns {"texts": [...]} as JSON.
std::string encode_texts(const std::vector<std::string>& texts, const std::string& output, const ModelParts& parts, ThreadPool& pool);

}  // namespace megaslide
