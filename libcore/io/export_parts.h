// VAE, text encoder and tokenizer of a model directory on their way out, beside an exported network.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/stop.h"
#include "io/wan_names.h"

namespace megaslide {

class PartsExport {
 public:
  // `folder`: a model directory's parts_folder(); may be empty. One network alone has no use for scheduler and index.
  PartsExport(const std::string& folder, WanLayout layout, bool two_networks);

  bool any() const { return !vae_.empty() || !text_encoder_.empty(); }
  int64_t bytes() const;
  // kDiffusers: the folders as they are. kOriginal: Wan2.1_VAE.safetensors, models_t5_umt5-xxl-enc-bf16.safetensors and the
  // like under their original names, google/umt5-xxl/. Returns the files' names in `out`.
  std::vector<std::string> write(const std::string& out, StopToken stop) const;

 private:
  WanLayout layout_;
  std::string folder_, vae_, text_encoder_;                  // folders; empty: absent
  std::vector<std::pair<std::string, std::string>> copies_;  // path, name in the export
};

}  // namespace megaslide
