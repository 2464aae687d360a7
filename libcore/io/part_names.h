// The parts that come with a Wan transformer: its VAE (spec wan.md C.3, C.7) and the UMT5 text encoder (B.7), each a closed
// set of names and shapes in two layouts.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "io/fp8_scales.h"
#include "io/tensor_source.h"

namespace megaslide {

struct PartTensor {
  std::string name;      // diffusers (VAE) or transformers (UMT5) name
  std::string original;  // name in Wan's own files
  Shape shape;
};

// A part's file understood.
struct PartCheckpoint {
  bool original = false;                      // names of Wan's own files
  bool has_more = false;                      // tensors that have no use: decoder.*, lm_head.weight, …
  std::string prefix;                         // of a repack
  std::string config_json;                    // of the diffusers or transformers class: the source's, or made from the shapes
  std::vector<PartTensor> tensors;
  std::map<std::string, std::string> source;  // name → name in the source
  Fp8Scales scales;
  CodecKind codec = CodecKind::kNone;         // of a VAE
  int64_t width = 0;                          // VAE: latent channels; UMT5: width of an embedding
};

// The sizes of a VAE of either kind.
struct VaeShape {
  bool residual = false;  // 2.2
  int64_t base_dim = 0, decoder_base_dim = 0, z_dim = 0, in_channels = 3, out_channels = 3;
};
std::vector<PartTensor> vae_tensors(const VaeShape& s);

struct Umt5Shape {
  int64_t vocab_size = 0, d_model = 0, heads = 0, d_kv = 0, d_ff = 0, layers = 0, buckets = 32;
};
std::vector<PartTensor> umt5_tensors(const Umt5Shape& s);

// Recognise layout and sizes and compare every name and shape. `config_json`: text of the config.json beside it, or empty.
// Throw Error that lists what is missing or misshapen, or says that it is something else.
PartCheckpoint identify_vae(const TensorSource& source, const std::string& config_json);
PartCheckpoint identify_umt5(const TensorSource& source, const std::string& config_json);

// Name of the tensor with the sentencepiece model that some repacks of the text encoder carry (U8); empty without one.
std::string embedded_tokenizer(const TensorSource& source);

// Shared by both: finds every tensor of `part.tensors` under prefix and layout and fills `source` and `scales`.
void match_part(const TensorSource& source, PartCheckpoint& part, const std::string& what);

}  // namespace megaslide
