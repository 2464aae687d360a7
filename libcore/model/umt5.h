// The UMT5 text encoder (spec wan.md B): prompts are cleaned, tokenised and run without padding through blocks that are
// read from the model's files one at a time.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "model/text_encoder.h"
#include "model/umt5_block.h"
#include "model/umt5_config.h"
#include "model/umt5_weights.h"
#include "text/tokenizer.h"

namespace megaslide {

// The encoder's network alone. Resident at a time: two blocks' weights (one is read while the other computes), the
// packed matrices of one, the rows of the texts, and the temporaries of the longest text.
class Umt5 {
 public:
  Umt5(const std::string& folder, DType compute_dtype);  // text_encoder/
  const Umt5Config& config() const { return config_; }

  // Called with the rows (n, width) fp32 of text `text` after block `layer`.
  using Observer = FunctionRef<void(int64_t layer, size_t text, const float* rows)>;
  // Rows (n, width) fp32 a text: the last hidden state of its ids, which are below vocab_size. The rows of one do not
  // depend on the others: where the bits of a product's row may depend on its other rows, texts go through a block one by
  // one, else as many together as make products efficient.
  std::vector<HostTensor> run(ThreadPool& pool, const std::vector<std::vector<int64_t>>& texts) const;
  std::vector<HostTensor> run(ThreadPool& pool, const std::vector<std::vector<int64_t>>& texts, Observer after_block) const;

 private:
  Umt5Config config_;
  DType dtype_;
  Umt5Block block_;  // the same for all layers: it has no state
  Umt5Weights weights_;
};

class Umt5Encoder final : public TextEncoder {
 public:
  Umt5Encoder(const ModelParts& parts, DType compute_dtype);
  std::string identity() const override;  // hashes the weights at the first call, where no manifest knows them
  std::vector<EncodedText> encode_all(ThreadPool& pool, std::span<const std::string> prompts) const override;

 private:
  ModelParts parts_;
  mutable std::once_flag identified_;
  mutable std::string identity_;
  Umt5 network_;
  Tokenizer tokenizer_;
};

// "umt5:" and hashes of the weights and the tokenizer.
std::string umt5_identity(const ModelParts& parts);

}  // namespace megaslide
