// Where the pieces of a foreign checkpoint lie: the network or the two of them, and what goes along.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace megaslide {

struct CheckpointPlaces {
  std::string weights, weights_2;         // what TensorSource opens; the second network of Wan 2.2 A14B
  // Files or folders. Those found by their names in the original layout may turn out to be something else.
  std::vector<std::string> vae, text_encoder;
  bool vae_certain = false, text_encoder_certain = false;  // named by a flag, or folders of a pipeline
  std::string tokenizer;                  // folder with spiece.model
  std::string scheduler, model_index;     // JSON files of a diffusers pipeline
};

struct PartFlags {
  std::string vae, text_encoder, tokenizer;  // where the user says they are; empty: looked for beside the weights
};

// `given`: a diffusers pipeline folder or its transformer, Wan's own folder (one network at its root, or
// high_noise_model/ and low_noise_model/), a file or an index. Throws Error when it isn't there or is a model directory.
CheckpointPlaces find_places(const std::string& given, const PartFlags& flags);

// Bytes of all weights that an import of `places` reads.
int64_t weight_bytes(const CheckpointPlaces& places);

}  // namespace megaslide
