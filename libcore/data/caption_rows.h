// Text rows of captions while a cache is made: found in what is there, or encoded many at a time.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/stop.h"
#include "base/thread_pool.h"
#include "data/cache.h"
#include "model/model_parts.h"
#include "tensor/tensor.h"

namespace megaslide {

// A learned text encoder streams gigabytes of weights a call, so all captions of a run go through it together, before the
// first clip, and wait in CACHE/captions/HASH.safetensors until a clip's file holds them. Rows of captions whose clips are
// dropped stay there for the next run.
class CaptionRows {
 public:
  // `clip_with`: for a caption's hash the key of some clip's file that ends with it.
  CaptionRows(std::string cache, std::map<std::string, std::string> clip_with);

  // Encodes what is missing of `captions` (hash -> text), and the empty caption when CACHE/empty_text.safetensors is missing
  // or of another encoder. The encoder is loaded only when something is to do, and gone afterwards. Returns how many of
  // `captions` were encoded.
  int64_t provide(const std::map<std::string, std::string>& captions, const ModelParts& parts, DType dtype, ThreadPool& pool, StopToken stop);

  struct Rows {
    HostTensor text;   // F32 [rows, text_dim]
    std::string note;  // what was left out
  };
  Rows rows(const std::string& hash) const;  // of a caption that was provided

  void forget(const std::string& hash);  // a clip's file holds it now

 private:
  bool has(const std::string& hash);
  void encode(const std::vector<std::pair<std::string, std::string>>& captions, bool empty, const ModelParts& parts, DType dtype, ThreadPool& pool, StopToken stop);
  bool empty_is_there(const std::string& identity) const;
  std::string file(const std::string& hash) const { return cache_ + "/captions/" + hash + ".safetensors"; }

  std::string cache_;
  std::map<std::string, std::string> clip_with_;
};

}  // namespace megaslide
