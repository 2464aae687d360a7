// What goes with a transformer: its codec and its text encoder, built in or read from folders beside its weights.
#pragma once
#include <map>
#include <string>

#include "config/model_config.h"

namespace megaslide {

class ModelDirectory;

struct ModelParts {
  ModelParts() = default;
  ModelParts(const ModelConfig& c) : config(c) {}  // NOLINT(google-explicit-constructor): a config alone has built-in parts

  ModelConfig config;
  // Holds vae/{config.json, *.safetensors} (diffusers names), text_encoder/{config.json, *.safetensors} (transformers
  // names) and tokenizer/spiece.model. Empty: there are only built-in parts.
  std::string folder;
  std::map<std::string, std::string> sha256;  // of files in `folder` by relative name, where a manifest tells
};

// The parts of a model directory. A checkpoint without parts of its own uses those of `folder`, or where that is empty of
// the model it was trained from.
ModelParts parts_of(const ModelDirectory& model, const std::string& folder = {});
// The parts of any MODEL argument: a preset, a YAML file, a model directory, a foreign checkpoint with its folders.
ModelParts open_parts(const std::string& model_argument);

// A hash that stands for the content of all *.safetensors of `parts.folder`/`subfolder`: from the manifest where it is
// known, else by reading the files.
std::string part_identity(const ModelParts& parts, const std::string& subfolder);

}  // namespace megaslide
