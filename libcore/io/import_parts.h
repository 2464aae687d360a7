// VAE, text encoder and tokenizer on their way into a model directory's folders vae/, text_encoder/ and tokenizer/.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/stop.h"
#include "io/checkpoint_places.h"
#include "io/model_directory.h"
#include "io/part_names.h"
#include "io/shard.h"

namespace megaslide {

class PartsImport {
 public:
  // Opens and understands the parts; nothing is written. Parts found by name that don't fit `config` stay behind with a
  // warning; those that a flag or a pipeline names are an Error then. Sets config.codec and config.text_encoder.
  // FP8 parts need `dtype` to be kBf16 or kFp32, and are stored as that; other parts keep their types.
  PartsImport(const CheckpointPlaces& places, StoreDtype dtype, bool two_networks, ModelConfig& config);

  bool any() const { return vae_ || text_encoder_ || !tokenizer_.empty() || !spiece_.empty() || !model_index_.empty(); }
  int64_t bytes() const;
  void write(ModelDirectoryWriter& writer, StopToken stop) const;

 private:
  struct Part {
    explicit Part(TensorSource s) : source(std::move(s)) {}
    TensorSource source;
    PartCheckpoint checkpoint;
  };
  using Identify = PartCheckpoint (*)(const TensorSource&, const std::string&);
  std::optional<Part> open(const std::vector<std::string>& candidates, bool certain, Identify identify, int64_t width, const char* what) const;
  void find_tokenizer(const CheckpointPlaces& places);
  void write_part(ModelDirectoryWriter& writer, const Part& part, const std::string& folder, const std::string& base, StopToken stop) const;
  bool canonical(const Part& part, const std::string& base) const;
  std::string model_index_text(const ModelConfig& config) const;

  StoreDtype dtype_;
  std::optional<Part> vae_, text_encoder_;
  std::vector<std::pair<std::string, std::string>> tokenizer_;  // path, name in the model directory
  std::string tokenizer_class_ = "T5TokenizerFast";
  std::string spiece_;                                          // tensor of the text encoder with spiece.model
  std::string scheduler_, model_index_;                         // texts
};

// The flow shift that a diffusers scheduler's config states; nothing when the file says none.
std::optional<double> scheduler_flow_shift(const std::string& path);
// "boundary_ratio" of a model_index.json.
std::optional<double> index_boundary(const std::string& path);

}  // namespace megaslide
