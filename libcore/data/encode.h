// A whole dataset to a latent cache.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/stop.h"
#include "base/thread_pool.h"
#include "data/clip.h"
#include "data/dataset.h"
#include "data/selection.h"
#include "model/model_parts.h"
#include "model/video_codec.h"

namespace megaslide {

// How a learned codec and text encoder compute.
struct PartOptions {
  std::optional<DType> compute_dtype;  // of both; without it the codec encodes in F32 and the text encoder multiplies in bf16
  bool vae_tiling = false;             // large pictures tile by tile: less memory, slightly other latents
  Backend backend = Backend::kCpu;     // of a learned codec; kCuda: of a program with CUDA
};

inline constexpr int64_t kDecodedAhead = int64_t{1} << 30;
inline constexpr size_t kMostStrips = 300;  // clips with strips; a page of more can hardly be opened

struct EncodeOptions {
  std::vector<std::string> datasets;
  std::string cache;               // folder; made when missing
  SelectionRule rule;
  DatasetOptions dataset;
  bool frame_md5 = false;          // decodes every clip, also those that are in the cache
  std::string pictures;            // folder for the pictures that were encoded, a folder of PNG frames a clip; decodes every clip
  bool strips = false;             // rows of small pictures for the report; decodes every clip
  PartOptions parts;
};

struct ClipReport {
  std::string path, place, caption;
  ClipFacts facts;
  std::string key;                 // in the cache; empty when dropped
  bool reused = false;             // the latent was there already
  std::vector<std::string> md5;
  std::string pictures;            // folder of PNG frames, when asked for
  std::string source_strip, used_strip;  // PNG: the whole clip with what is cut in the dark, and what is kept
};

// What a run spent, summed over threads where there are several.
struct StageSeconds {
  double hash = 0, text = 0, decode = 0, codec = 0, write = 0;
  double wall = 0;
  int64_t frames_decoded = 0;
};

struct EncodeReport {
  std::vector<ClipReport> clips;      // in the dataset's order
  std::vector<std::string> warnings;  // of the dataset, then of clips as "PATH: ..."
  int64_t kept = 0, dropped = 0;      // kept: all that are not dropped
  int64_t encoded = 0;                // latents made by this run
  int64_t texts_encoded = 0;          // captions encoded by this run
  StageSeconds seconds;
  size_t dataset_warnings = 0;        // so many of `warnings` are about the dataset as a whole, not about one clip
};

// The rule for a model: `width`, `height`, `num_frames`, `fps` as given on the command line, 0 where not given.
// Buckets are parsed from `buckets_text` when `buckets_name` is not empty.
SelectionRule make_selection_rule(const ModelConfig& model, int64_t width, int64_t height, int64_t num_frames, double fps,
                                  const std::string& buckets_text = {}, const std::string& buckets_name = {});

// A bad clip costs no other. Captions first, all together; then clips one after the other through the codec, which has all
// threads, while the next ones are decoded ahead within kDecodedAhead bytes: the memory needed does not depend on the
// dataset's size, and a text encoder and a codec are never there together. A run that was ended early goes on where it
// was. Writes the cache's index when at least one clip is kept. Errors: the dataset cannot be
// read at all, or the cache cannot be written. When `stop` asks, what was encoded stays and Stopped is thrown.
EncodeReport encode_dataset(const EncodeOptions& options, const ModelParts& parts, ThreadPool& pool, StopToken stop = {});

// `memory`: of the codec's device, where it has one.
CodecOptions codec_options(const PartOptions& options, ModelMemory* memory = nullptr);
inline DType text_dtype(const PartOptions& options) { return options.compute_dtype.value_or(DType::kBF16); }

// encode-clips --tensor: `video` [B, 3, F, H, W] of any float type to mean, logvar, mean_normalised [B, C, T, h, w].
void encode_tensor_file(const std::string& input, const std::string& output, const ModelParts& parts, ThreadPool& pool, const PartOptions& options = {});

// encode-clips --text: embeds.<i> F32 [text_len, text_dim] and ids.<i> I64 [n]; returns {"texts": [...]} as JSON.
std::string encode_texts(const std::vector<std::string>& texts, const std::string& output, const ModelParts& parts, ThreadPool& pool, const PartOptions& options = {});

}  // namespace megaslide
