#include "text/tokenizer.h"

#include <exception>
#include <filesystem>

#include <sentencepiece_processor.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/library_versions.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "text/spiece_model.h"
#include "text/tokenizer_json.h"

namespace megaslide {
namespace {

constexpr int64_t kMaxModelBytes = 64 << 20;  // UMT5's has 4.5 MB
constexpr size_t kMaxTextBytes = 64 << 20;    // the library counts in 32 bits, several entries a byte

constexpr const char* kDamaged = "fetch the file again: it is damaged or no sentencepiece model";

std::string model_path(const std::string& folder) { return folder + "/spiece.model"; }

}  // namespace

struct Tokenizer::Impl {
  sentencepiece::SentencePieceProcessor processor;
  bool bytes = false;  // byte pieces stay
  int end = 0, unknown = 0;
};

Tokenizer::Tokenizer(std::string_view bytes, const std::string& source, std::optional<UnknownCharacters> unknown)
    : impl_(std::make_unique<Impl>()) {
  const SentencePieceModel model = parse_sentencepiece_model(bytes, source);
  try {
    const auto status = impl_->processor.LoadFromSerializedProto(serialize_sentencepiece_model(model));
    if (!status.ok()) throw Error(fmt::format("{}: sentencepiece: {}", source, quote_for_message(status.ToString())), kDamaged);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(fmt::format("{}: sentencepiece: {}", source, quote_for_message(e.what())), kDamaged);
  }
  impl_->end = impl_->processor.eos_id();
  impl_->unknown = impl_->processor.unk_id();
  if (impl_->end < 0)
    throw Error(fmt::format("{}: has no control piece {} for the end of a text", source, quote_for_message(model.end)),
                "use the tokenizer that came with the text encoder");
  const bool wanted = unknown ? *unknown == UnknownCharacters::kBytes : model.byte_fallback;
  impl_->bytes = wanted && model.all_bytes;
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::open(const std::string& folder, std::optional<UnknownCharacters> unknown) {
  if (!unknown)
    if (const auto fallback = byte_fallback_in(folder)) unknown = *fallback ? UnknownCharacters::kBytes : UnknownCharacters::kUnk;
  std::error_code ignored;
  if (!std::filesystem::exists(model_path(folder), ignored))
    throw Error(fmt::format("{}: there is no such file", model_path(folder)), "fetch the tokenizer's spiece.model; a tokenizer.json alone is not enough");
  return {read_file(model_path(folder), kMaxModelBytes), model_path(folder), unknown};
}

TokenizedText Tokenizer::encode(std::string_view text, int64_t max_length) const {
  MS_CHECK(max_length >= 1, "{}", max_length);
  if (text.size() > kMaxTextBytes)
    throw Error(fmt::format("a prompt of {} bytes: at most {} are tokenised", text.size(), kMaxTextBytes), "shorten the prompt; the model reads a few hundred words");
  std::vector<int> ids;
  const auto status = impl_->processor.Encode({text.data(), text.size()}, &ids);
  if (!status.ok()) throw Error(fmt::format("sentencepiece: {}", status.ToString()));
  TokenizedText out;
  bool in_unknown = false;
  for (int id : ids) {
    // Byte pieces stand for nothing but unknown characters: a run of them is one run of unknown text.
    if (!impl_->bytes && impl_->processor.IsByte(id)) id = impl_->unknown;
    const bool is_unknown = id == impl_->unknown;
    if (is_unknown && in_unknown) continue;
    in_unknown = is_unknown;
    if (++out.pieces < max_length) out.ids.push_back(id);
  }
  out.ids.push_back(impl_->end);
  return out;
}

int64_t Tokenizer::size() const { return impl_->processor.GetPieceSize(); }
int64_t Tokenizer::end_id() const { return impl_->end; }
UnknownCharacters Tokenizer::unknown_characters() const { return impl_->bytes ? UnknownCharacters::kBytes : UnknownCharacters::kUnk; }

std::string tokenizer_identity(const std::string& folder, const std::string& model_sha256) {
  const auto fallback = byte_fallback_in(folder);
  return fmt::format("{}{}", model_sha256.empty() ? sha256_file(model_path(folder)) : model_sha256,
                     !fallback ? "" : *fallback ? "+bytes" : "+unk");
}

std::string version_of_sentencepiece() { return MEGASLIDE_SENTENCEPIECE_VERSION; }

}  // namespace megaslide
