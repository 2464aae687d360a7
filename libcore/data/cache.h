// Cached latents and text rows: what encode-clips writes and training reads.
//
//   CACHE/index.json                   {"format": "megaslide-cache", "version": 1, "codec", "text_encoder", "empty_text",
//                                       "clips": [{"key", "path", "caption", "latent": [C,T,h,w], "text_rows",
//                                                  "frames", "size": [w,h], "fps", "latent_cuts": [first latent frames
//                                                  of all shots but the first], "source_bytes", "source_sha256"}]}
//   CACHE/clips/KEY.safetensors        latent F32 [C,T,h,w], normalised; text F32 [rows, text_dim], real rows only;
//                                      metadata sha256: of the bytes of latent, then text
//   CACHE/empty_text.safetensors       text F32 [rows, text_dim] of the empty caption, for caption dropout; metadata
//                                      text_encoder, sha256. "empty_text" of the index is its name
//   CACHE/captions/, CACHE/.lock       of a run that is at work, or was ended early (caption_rows.h, CacheLock)
//
// KEY is NAME-LATENT-TEXT: a readable name, a hash of everything the latent depends on (the file's content, the codec,
// the selection), and a hash of the caption and the text encoder. Equal keys mean equal files, so a run that finds a
// file need not make it again. Files of other selections stay beside; index.json names those of the last run.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/cache_index.h"
#include "io/safetensors.h"
#include "model/model_parts.h"
#include "tensor/tensor.h"

namespace megaslide {

CacheIdentity cache_identity(const ModelParts& parts);

// Throws Error with this remedy where `dir` holds no index.
void require_latent_cache(const std::string& dir, const std::string& remedy);

class LatentCache {
 public:
  // Reads the index and checks that every file is there. Throws Error naming what is wrong and how to make it again.
  static LatentCache open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const CacheIdentity& identity() const { return identity_; }
  size_t size() const { return clips_.size(); }
  const CachedClip& info(size_t i) const { return clips_[i]; }

  // Views stay valid while the Clip (or a copy) lives. Thread-safe. Throws Error where the file is damaged.
  struct Clip {
    SafetensorsFile file;
    TensorView latent;  // F32 [C, T, h, w]
    TensorView text;    // F32 [rows, text_dim], rows may be 0
  };
  Clip clip(size_t i) const;

  // Error naming both identities when the cache was made for another codec or text encoder than the model's.
  void require_model(const ModelParts& parts) const;

  // Clips of one latent shape, in the cache's order; shapes ascending.
  struct Bucket {
    Shape latent;
    std::vector<size_t> clips;
  };
  std::vector<Bucket> buckets() const;

 private:
  static LatentCache read_index(const std::string& dir);

  std::string dir_;
  CacheIdentity identity_;
  std::vector<CachedClip> clips_;
};

// Error naming the file where the tensors are no latent and text, a value is not finite, or the content is not what was
// written: a step of every epoch would be spoiled, and nothing would say where that came from.
void require_intact(const LatentCache::Clip& clip);
void require_intact_text(const SafetensorsFile& file);  // the same of a file with text alone
// Error where the model cannot read the text rows.
void require_text_of(const LatentCache::Clip& clip, const ModelConfig& model);

// Writing; each call is atomic.
std::string cached_clip_file(const std::string& dir, const std::string& key);
void write_cached_clip(const std::string& dir, const std::string& key, const TensorView& latent, const TensorView& text,
                       std::map<std::string, std::string> metadata);
std::string empty_text_file(const std::string& dir);
void write_cached_text(const std::string& path, const TensorView& text, std::map<std::string, std::string> metadata);
void write_cache_index(const std::string& dir, const CacheIdentity& identity, const std::vector<CachedClip>& clips);

// One writer a cache: Error naming the other process while it lives. Readers need no lock, every file appears whole.
class CacheLock {
 public:
  explicit CacheLock(const std::string& dir);
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace megaslide
