// Captions to rows of numbers. One interface for the training-free hashed encoder and for a learned text model.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "model/model_parts.h"
#include "tensor/tensor.h"

namespace megaslide {

struct EncodedText {
  std::string cleaned;       // the text as it was split
  std::vector<int64_t> ids;  // one a row
  HostTensor rows;           // F32 [n, text_dim], n = ids.size() ≤ text_len; n = 0 for the empty prompt
  int64_t cut = 0;           // rows beyond text_len that were left out
};

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  virtual std::string identity() const = 0;  // rows of different identities must not be mixed
  // One result a prompt. A learned encoder streams its layers once a call: give it many prompts at a time. The rows of
  // a prompt do not depend on its neighbours or on the threads.
  virtual std::vector<EncodedText> encode_all(ThreadPool& pool, std::span<const std::string> prompts) const = 0;
  EncodedText encode(ThreadPool& pool, std::string_view prompt) const;
};

// The text encoder of a model; `compute_dtype` is that of a learned encoder's products. A usage Error where the model
// names none or its files are missing.
std::unique_ptr<TextEncoder> make_text_encoder(const ModelParts& parts, DType compute_dtype = DType::kBF16);
// Names the text encoder without loading it: identity() of what make_text_encoder returns.
std::string text_encoder_identity(const ModelParts& parts);

// Rows of a prompt padded with zeros: F32 [text_len, text_dim].
HostTensor pad_text(const ModelConfig& config, const TensorView& rows);

// Hashed n-grams. Cleaning: invalid UTF-8 becomes U+FFFD, control characters and all Unicode white space become one
// blank, outer blanks go; nothing is composed or decomposed. A row is a word (between blanks, without ASCII
// punctuation at its ends, ASCII letters in lower case): the sum of sign vectors of the word (weight 1), of the pair
// with the word before it (1/2) and of its character trigrams, "<" and ">" marking the ends (1/2 in all), scaled to a
// root mean square of 1. A sign vector is the bits of Philox4x32 keyed with a constant and counted by the feature's
// 64-bit FNV-1a hash: integer arithmetic and one square root, hence equal on every machine. ids are the word's hash
// modulo 2^31.
class HashedNgramEncoder final : public TextEncoder {
 public:
  HashedNgramEncoder(int64_t text_len, int64_t text_dim) : text_len_(text_len), text_dim_(text_dim) {}
  std::string identity() const override;
  std::vector<EncodedText> encode_all(ThreadPool& pool, std::span<const std::string> prompts) const override;

 private:
  EncodedText encode_one(std::string_view prompt) const;


  int64_t text_len_, text_dim_;
};

std::string clean_text(std::string_view text);

}  // namespace megaslide
