// A MODEL argument with weights: a model directory or checkpoint as it is, a foreign checkpoint by way of a temporary
// import.
#pragma once
#include <memory>
#include <string>

#include "io/model_directory.h"

namespace megaslide {

class OpenModel {
 public:
  // Throws a usage Error for a preset's name (it has no weights), for foreign checkpoints beyond 4 GiB, which are worth a
  // shard-weights run of their own, and for networks that take an image beside the latent; Error for what cannot be read.
  explicit OpenModel(const std::string& argument);
  const ModelDirectory& directory() const { return *directory_; }

 private:
  std::shared_ptr<void> temporary_;  // removes the imported copy
  std::shared_ptr<ModelDirectory> directory_;
};

// The configuration that a MODEL argument of any kind stands for: a preset, a YAML file, a model directory, a foreign
// checkpoint (whose shapes are read, not its weights).
ModelConfig model_config_of(const std::string& argument);

}  // namespace megaslide
