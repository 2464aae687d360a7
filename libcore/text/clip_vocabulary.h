// The vocabulary of CLIP's byte-pair encoding in the three files it is published as (spec vbench.md, "CLIP BPE").
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace megaslide {

// Ids: 256 bytes in the order of their printable stand-ins, the same at the end of a word, one a merge, start, end.
struct ClipVocabulary {
  static constexpr int32_t kBytes = 256;
  static constexpr int32_t kFirstMerge = 2 * kBytes;
  static constexpr int32_t kPublishedMerges = 48894;

  int32_t byte_id[kBytes];                         // of a byte within a word; + kBytes at its end
  std::unordered_map<uint64_t, int32_t> merged;    // pair_key(left, right) -> the id they become; earlier merges have lower ones
  int32_t start() const { return kFirstMerge + static_cast<int32_t>(merged.size()); }
  int32_t end() const { return start() + 1; }
  static uint64_t pair_key(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }
};

// From the bytes of merges.txt, of the same gzipped (bpe_simple_vocab_16e6.txt.gz; merges beyond the published 48,894
// are for other models and left out) or of a Hugging Face tokenizer.json, told apart by what they hold. A shorter list
// of merges gives a smaller vocabulary. `source` names the file in messages. Throws Error with the line where a merge is
// no pair of known pieces or makes a known one, and where the ids of a tokenizer.json are not those of its merges.
ClipVocabulary parse_clip_vocabulary(std::string_view bytes, const std::string& source);

}  // namespace megaslide
