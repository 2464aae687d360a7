// CACHE/index.json (cache.h describes it): the text, and what it says.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

struct CachedClip {
  std::string key;
  std::string path;     // of the source, as the dataset names it
  std::string caption;
  Shape latent;         // [C, T, h, w]
  int64_t text_rows = 0;
  int64_t frames = 0, width = 0, height = 0;  // of the video that was encoded
  double fps = 0;
  std::vector<int64_t> latent_cuts;  // first latent frames of all shots but the first, ascending
  int64_t source_bytes = 0;
  std::string source_sha256;
};

// Names that must match before latents and rows of two origins may be mixed.
struct CacheIdentity {
  std::string codec, text_encoder;
};
struct CacheIndex {
  CacheIdentity identity;
  std::vector<CachedClip> clips;
};

// Throws Error naming `source` and the clip for anything that an index does not hold.
CacheIndex parse_cache_index(std::string_view text, const std::string& source);
std::string cache_index_text(const CacheIndex& index);

inline std::string cache_index_file(const std::string& cache) { return cache + "/index.json"; }
inline constexpr const char* kEmptyTextFile = "empty_text.safetensors";

}  // namespace megaslide
