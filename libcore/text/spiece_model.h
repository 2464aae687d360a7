// spiece.model files: a protobuf message (spec wan.md B.8) read field by field, checked, and written anew for the
// sentencepiece library with nothing in it but what was checked. The library trusts its input: an out-of-range entry of
// the normaliser's trie, for example, makes it read beyond its memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

struct SentencePiece {
  enum Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  std::string_view text;  // into the file's bytes
  float score = 0;        // natural logarithm of its probability
  int type = kNormal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;  // one an id
  bool byte_fallback = false;         // as the file says
  bool all_bytes = false;             // has the 256 byte pieces
  std::string_view unknown = "<unk>", begin = "<s>", end = "</s>", padding = "<pad>";
  bool whitespace_as_suffix = false;
  std::string_view normaliser;        // its name: "nmt_nfkc"
  std::string_view charsmap;          // precompiled rules of the normaliser; may be empty
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// `bytes` must outlive the result. Throws Error naming `source`, where in it, and what to do; bounded in memory by a
// small multiple of the file.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source);

// The message for the library. With byte pieces, unknown characters become those.
std::string serialize_sentencepiece_model(const SentencePieceModel& model);

// What is wrong with a precompiled map of characters; empty where nothing is.
std::string check_charsmap(std::string_view charsmap);

}  // namespace megaslide
