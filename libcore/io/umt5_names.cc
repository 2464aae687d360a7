// The tensors of the UMT5 encoder.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/part_names.h"

namespace megaslide {
namespace {

int64_t extent(const TensorSource& source, const std::string& name, size_t axis) {
  const auto* e = source.find(name);
  if (!e || e->shape.size() <= axis || e->shape[axis] < 1 || e->shape[axis] > (1 << 24))
    throw Error(fmt::format("{}: a text encoder without a usable tensor {}", source.path(), name), "fetch the file again, complete");
  return e->shape[axis];
}

int64_t count_layers(const TensorSource& source, const std::string& start) {
  int64_t layers = 0;
  for (auto it = source.tensors().lower_bound(start); it != source.tensors().end() && it->first.starts_with(start); ++it) {
    const std::string digits = it->first.substr(start.size(), it->first.find('.', start.size()) - start.size());
    if (!digits.empty() && digits.size() <= 3 && digits.find_first_not_of("0123456789") == std::string::npos) layers = std::max<int64_t>(layers, 1 + std::stoll(digits));
  }
  return layers;
}

std::string make_config(const Umt5Shape& s, DType dtype) {
  const nlohmann::ordered_json j = {
      {"architectures", {"UMT5EncoderModel"}}, {"classifier_dropout", 0.0}, {"d_ff", s.d_ff}, {"d_kv", s.d_kv}, {"d_model", s.d_model},
      {"decoder_start_token_id", 0}, {"dense_act_fn", "gelu_new"}, {"dropout_rate", 0.1}, {"eos_token_id", 1}, {"feed_forward_proj", "gated-gelu"},
      {"initializer_factor", 1.0}, {"is_encoder_decoder", true}, {"is_gated_act", true}, {"layer_norm_epsilon", 1e-6}, {"model_type", "umt5"},
      {"num_decoder_layers", s.layers}, {"num_heads", s.heads}, {"num_layers", s.layers}, {"output_past", true}, {"pad_token_id", 0},
      {"relative_attention_max_distance", 128}, {"relative_attention_num_buckets", s.buckets}, {"scalable_attention", true},
      {"tie_word_embeddings", false}, {"tokenizer_class", "T5Tokenizer"},
      {"torch_dtype", dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32"}, {"use_cache", true}, {"vocab_size", s.vocab_size}};
  return j.dump(2) + "\n";
}

}  // namespace

std::vector<PartTensor> umt5_tensors(const Umt5Shape& s) {
  const int64_t d = s.d_model, inner = s.heads * s.d_kv;
  std::vector<PartTensor> out = {{"shared.weight", "token_embedding.weight", {s.vocab_size, d}}};
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string block = fmt::format("encoder.block.{}.layer.", i), original = fmt::format("blocks.{}.", i);
    const std::string attention = block + "0.SelfAttention.", ffn = block + "1.DenseReluDense.";
    out.push_back({block + "0.layer_norm.weight", original + "norm1.weight", {d}});
    for (const char* x : {"q", "k", "v"}) out.push_back({attention + x + ".weight", original + "attn." + x + ".weight", {inner, d}});
    out.push_back({attention + "o.weight", original + "attn.o.weight", {d, inner}});
    out.push_back({attention + "relative_attention_bias.weight", original + "pos_embedding.embedding.weight", {s.buckets, s.heads}});
    out.push_back({block + "1.layer_norm.weight", original + "norm2.weight", {d}});
    out.push_back({ffn + "wi_0.weight", original + "ffn.gate.0.weight", {s.d_ff, d}});
    out.push_back({ffn + "wi_1.weight", original + "ffn.fc1.weight", {s.d_ff, d}});
    out.push_back({ffn + "wo.weight", original + "ffn.fc2.weight", {d, s.d_ff}});
  }
  out.push_back({"encoder.final_layer_norm.weight", "norm.weight", {d}});
  return out;
}

std::string embedded_tokenizer(const TensorSource& source) {
  const auto* e = source.find("spiece_model");
  return e && e->dtype == DType::kU8 && e->shape.size() == 1 ? "spiece_model" : "";
}

PartCheckpoint identify_umt5(const TensorSource& source, const std::string& config_json) {
  PartCheckpoint part;
  bool found = false;
  for (const char* prefix : {"", "module.", "model.", "text_encoder.", "text_encoders.umt5xxl.transformer."}) {
    for (const bool original : {false, true}) {
      if (found || !source.find(std::string(prefix) + (original ? "blocks.0.ffn.gate.0.weight" : "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"))) continue;
      part.prefix = prefix;
      part.original = original;
      found = true;
    }
  }
  if (!found) throw Error(fmt::format("{}: not a UMT5 text encoder", source.path()), "give Wan's text encoder, UMT5-XXL, in the original or the transformers layout");
  std::string table = part.original ? "token_embedding.weight" : "shared.weight";
  // Some exports hold the embedding under the encoder's own name only.
  const bool renamed = !part.original && !source.find(part.prefix + table) && source.find(part.prefix + "encoder.embed_tokens.weight");
  if (renamed) table = "encoder.embed_tokens.weight";
  const std::string block = part.prefix + (part.original ? "blocks.0." : "encoder.block.0.layer.");
  const std::string bias = block + (part.original ? "pos_embedding.embedding.weight" : "0.SelfAttention.relative_attention_bias.weight");
  Umt5Shape s;
  s.vocab_size = extent(source, part.prefix + table, 0);
  s.d_model = extent(source, part.prefix + table, 1);
  s.buckets = extent(source, bias, 0);
  s.heads = extent(source, bias, 1);
  s.d_kv = extent(source, block + (part.original ? "attn.q.weight" : "0.SelfAttention.q.weight"), 0) / s.heads;
  s.d_ff = extent(source, block + (part.original ? "ffn.gate.0.weight" : "1.DenseReluDense.wi_0.weight"), 0);
  s.layers = count_layers(source, part.prefix + (part.original ? "blocks." : "encoder.block."));
  part.width = s.d_model;
  part.tensors = umt5_tensors(s);
  if (renamed) part.tensors[0].name = table;
  match_part(source, part, "a UMT5 text encoder");
  if (renamed) {
    part.tensors[0].name = "shared.weight";
    part.source["shared.weight"] = part.prefix + table;
    part.has_more = true;  // not canonical as it is
  }
  part.config_json = config_json.empty() || part.original ? make_config(s, source.find(part.source["encoder.final_layer_norm.weight"])->dtype) : config_json;
  return part;
}

}  // namespace megaslide
