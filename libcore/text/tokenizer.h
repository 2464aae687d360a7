// Text to the ids of a UMT5 text encoder (spec wan.md B.8), by the sentencepiece library.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

// What becomes of characters that the model does not know: their UTF-8 bytes' pieces, or one <unk> a run of them.
enum class UnknownCharacters { kBytes, kUnk };

struct TokenizedText {
  std::vector<int64_t> ids;  // at most max_length, the last one is </s>
  int64_t pieces = 0;        // of the whole text, without </s>
  int64_t cut(int64_t max_length) const { return pieces < max_length ? 0 : pieces - (max_length - 1); }  // left out
};

class Tokenizer {
 public:
  // FOLDER/spiece.model; FOLDER/tokenizer.json is asked for its byte_fallback where `unknown` does not say it. Throws
  // Error naming the file for anything that is missing, damaged or of another kind. Whatever the setting, a model without
  // byte pieces has <unk> only.
  static Tokenizer open(const std::string& folder, std::optional<UnknownCharacters> unknown = std::nullopt);
  // The same from the bytes of such a model; `source` names them in messages.
  Tokenizer(std::string_view bytes, const std::string& source, std::optional<UnknownCharacters> unknown = std::nullopt);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Of text as clean_prompt() leaves it. Names of special pieces in it ("</s>", "<extra_id_0>") are ordinary text, as
  // for sentencepiece itself; Hugging Face's tokenizers take them for the pieces. Thread-safe. Time and memory are linear
  // in the text; an Error beyond 64 MiB.
  TokenizedText encode(std::string_view text, int64_t max_length) const;

  int64_t size() const;  // ids are below
  int64_t end_id() const;
  UnknownCharacters unknown_characters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Says which ids a folder's tokenizer gives without loading it: a hash of spiece.model (`model_sha256` where it is
// known), and what becomes of unknown characters where tokenizer.json says it.
std::string tokenizer_identity(const std::string& folder, const std::string& model_sha256 = {});

}  // namespace megaslide
