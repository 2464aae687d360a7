// Text to the ids of CLIP's and ViCLIP's text towers: byte-pair encoding (spec vbench.md, "CLIP BPE"), as OpenAI's
// simple_tokenizer with ftfy at hand, whose repair of mojibake is left out.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/clip_vocabulary.h"

namespace megaslide {

class ClipTokenizer {
 public:
  // A file that parse_clip_vocabulary reads, or a folder with one of them under its published name. Throws Error naming
  // the file for anything that is missing or damaged.
  static ClipTokenizer open(const std::string& path);
  // The same from bytes; `source` names them in messages.
  ClipTokenizer(std::string_view bytes, const std::string& source);

  // Start, the pieces of the text, end. The text is cleaned (clean_prompt) and made small here. Literal
  // "<|startoftext|>" and "<|endoftext|>" where a word could begin become their ids. Bytes that are no UTF-8 count as
  // U+FFFD. Thread-safe. Time n·log n, memory linear; an Error beyond 1 MiB.
  std::vector<int64_t> encode(std::string_view text) const;

  int64_t size() const { return vocabulary_.end() + 1; }  // ids are below: the rows of a text tower's token embedding
  int64_t start_id() const { return vocabulary_.start(); }
  int64_t end_id() const { return vocabulary_.end(); }
  const std::string& path() const { return path_; }  // of the vocabulary, for its hash

 private:
  ClipVocabulary vocabulary_;
  std::string path_;
};

constexpr int64_t kClipContext = 77, kViclipContext = 32;

// Throws a usage error where CLIP's text tower would read more ids than its context holds: a part of the prompt has
// another meaning than the whole. `prompt` is for the message.
void require_clip_context(const std::vector<int64_t>& ids, std::string_view prompt);

// ViCLIP's way: of a longer list the first 31 ids and the end id.
std::vector<int64_t> cut_to_viclip_context(std::vector<int64_t> ids);

}  // namespace megaslide
