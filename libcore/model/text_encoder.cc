#include "model/text_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"
#include "base/utf8.h"
#include "model/umt5.h"

namespace megaslide {
namespace {

constexpr uint32_t kSeedLow = 0x4d53'6c64, kSeedHigh = 0x7465'7874;  // any constants: part of the encoder's identity

uint64_t fnv1a(char kind, std::string_view text) {
  uint64_t h = 0xcbf29ce484222325;
  const auto mix = [&h](char c) { h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3; };
  mix(kind);
  for (const char c : text) mix(c);
  return h;
}

void add_signs(std::vector<double>& sum, uint64_t feature, double weight) {
  for (size_t j = 0; j < sum.size(); j += 128) {
    const auto words = philox4x32({kSeedLow, kSeedHigh}, {static_cast<uint32_t>(j / 128), 0, static_cast<uint32_t>(feature), static_cast<uint32_t>(feature >> 32)});
    for (size_t k = 0; k < 128 && j + k < sum.size(); ++k) sum[j + k] += (words[k / 32] >> (k % 32) & 1) != 0 ? weight : -weight;
  }
}

// Bytes of the character that starts with `c`, for text that is valid UTF-8.
size_t character_bytes(char c) {
  const auto u = static_cast<unsigned char>(c);
  return u < 0x80 ? 1 : u < 0xe0 ? 2 : u < 0xf0 ? 3 : 4;
}

bool is_blank(uint32_t c) {
  return c <= 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0x1680 || (c >= 0x2000 && c <= 0x200b) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000 || c == 0xfeff;
}

bool is_punctuation(char c) { return std::strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c) != nullptr && c != 0; }

std::vector<std::string> split_words(const std::string& cleaned) {
  std::vector<std::string> words;
  size_t at = 0;
  while (at < cleaned.size()) {
    const size_t blank = std::min(cleaned.find(' ', at), cleaned.size());
    size_t begin = at, end = blank;
    while (begin < end && is_punctuation(cleaned[begin])) ++begin;
    while (end > begin && is_punctuation(cleaned[end - 1])) --end;
    if (begin == end) {  // nothing but punctuation is a word of its own
      begin = at;
      end = blank;
    }
    std::string word = cleaned.substr(begin, end - begin);
    for (char& c : word)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    words.push_back(std::move(word));
    at = blank + 1;
  }
  return words;
}

std::vector<std::string> trigrams(const std::string& word) {
  const std::string marked = "<" + word + ">";
  std::vector<size_t> starts;
  for (size_t i = 0; i < marked.size(); i += character_bytes(marked[i])) starts.push_back(i);
  starts.push_back(marked.size());
  std::vector<std::string> out;
  for (size_t i = 0; i + 3 < starts.size(); ++i) out.push_back(marked.substr(starts[i], starts[i + 3] - starts[i]));
  return out;
}

}  // namespace

std::string clean_text(std::string_view text) {
  std::string out;
  bool blank = false;
  for (size_t at = 0; at < text.size();) {
    const auto [c, bytes] = code_point_at(text, at);
    const size_t n = std::max<size_t>(bytes, 1);
    if (is_blank(c)) {
      blank = !out.empty();
    } else {
      if (blank) out += ' ';
      blank = false;
      if (c == 0xfffd) out += "\xef\xbf\xbd";
      else out += text.substr(at, n);
    }
    at += n;
  }
  return out;
}

std::string HashedNgramEncoder::identity() const { return fmt::format("hashed-ngram-1:{}x{}", text_len_, text_dim_); }

std::vector<EncodedText> HashedNgramEncoder::encode_all(ThreadPool&, std::span<const std::string> prompts) const {
  std::vector<EncodedText> out;
  for (const std::string& p : prompts) out.push_back(encode_one(p));
  return out;
}

EncodedText HashedNgramEncoder::encode_one(std::string_view prompt) const {
  EncodedText out;
  out.cleaned = clean_text(prompt);
  std::vector<std::string> words = split_words(out.cleaned);
  const auto limit = static_cast<size_t>(text_len_);
  if (words.size() > limit) {
    out.cut = static_cast<int64_t>(words.size() - limit);
    words.resize(limit);
  }
  out.rows = HostTensor(DType::kF32, {static_cast<int64_t>(words.size()), text_dim_});
  float* row = out.rows.f32();
  std::vector<double> sum(static_cast<size_t>(text_dim_));
  for (size_t i = 0; i < words.size(); ++i, row += text_dim_) {
    const uint64_t hash = fnv1a('w', words[i]);
    out.ids.push_back(static_cast<int64_t>(hash & 0x7fffffff));
    std::fill(sum.begin(), sum.end(), 0.0);
    add_signs(sum, hash, 1);
    add_signs(sum, fnv1a('p', (i == 0 ? std::string() : words[i - 1]) + " " + words[i]), 0.5);
    const auto grams = trigrams(words[i]);
    for (const std::string& g : grams) add_signs(sum, fnv1a('c', g), 0.5 / std::sqrt(static_cast<double>(grams.size())));
    double square = 0;
    for (const double v : sum) square += v * v;
    const double scale = square > 0 ? std::sqrt(static_cast<double>(text_dim_) / square) : 0;
    for (size_t j = 0; j < sum.size(); ++j) row[j] = static_cast<float>(sum[j] * scale);
  }
  return out;
}

HostTensor pad_text(const ModelConfig& config, const TensorView& rows) {
  HostTensor out(DType::kF32, {config.text_len, config.text_dim});
  MS_CHECK(rows.dtype == DType::kF32 && rows.shape.size() == 2 && rows.shape[0] <= config.text_len && rows.shape[1] == config.text_dim);
  if (rows.bytes() > 0) std::memcpy(out.data(), rows.data, static_cast<size_t>(rows.bytes()));
  return out;
}

std::unique_ptr<TextEncoder> make_text_encoder(const ModelParts& parts, DType compute_dtype) {
  const ModelConfig& config = parts.config;
  switch (config.text_encoder) {
    case TextEncoderKind::kHashedNgram: return std::make_unique<HashedNgramEncoder>(config.text_len, config.text_dim);
    case TextEncoderKind::kUmt5: return std::make_unique<Umt5Encoder>(parts, compute_dtype);
    case TextEncoderKind::kNone: break;
  }
  throw usage_error(fmt::format("the model \"{}\" comes without a text encoder", config.name),
                    "use a model directory that holds one, or set `text_encoder: hashed-ngram` in the model's configuration");
}

std::string text_encoder_identity(const ModelParts& parts) {
  return parts.config.text_encoder == TextEncoderKind::kUmt5 ? umt5_identity(parts) : make_text_encoder(parts)->identity();
}

EncodedText TextEncoder::encode(ThreadPool& pool, std::string_view prompt) const {
  const std::string one(prompt);
  return std::move(encode_all(pool, {&one, 1}).front());
}

}  // namespace megaslide
