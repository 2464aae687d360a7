#include "text/clip_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <queue>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/unicode.h"
#include "base/utf8.h"
#include "text/clean.h"
#include "text/letters.h"

namespace megaslide {
namespace {

constexpr int64_t kMaxFileBytes = 64 << 20;  // the largest, tokenizer.json, has 2.2 MB
constexpr size_t kMaxTextBytes = 1 << 20;

constexpr std::u32string_view kStartText = U"<|startoftext|>", kEndText = U"<|endoftext|>";

// Patterns are compared without case after the text was made small: the long s still counts as an s.
char32_t folded(char32_t c) { return c == 0x17F ? U's' : c; }

bool begins(std::u32string_view text, std::u32string_view pattern) {
  return text.size() >= pattern.size() && std::equal(pattern.begin(), pattern.end(), text.begin(), [](char32_t p, char32_t c) { return p == folded(c); });
}

// Neither blank, letter nor number. U+0345 is none of the four, for its capital is a letter: it falls out.
bool is_sign(char32_t c) { return c != ' ' && c != 0x345 && !is_letter(c) && !is_number(c); }

// Characters of the word that begins `text`; 0 where none does. The order of the kinds is the specification's.
size_t word_length(std::u32string_view text) {
  for (const std::u32string_view special : {kStartText, kEndText})
    if (begins(text, special)) return special.size();
  for (const std::u32string_view ending : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"})
    if (begins(text, ending)) return ending.size();
  size_t n = 0;
  while (n < text.size() && is_letter(text[n])) ++n;
  if (n > 0) return n;
  if (is_number(text[0])) return 1;
  while (n < text.size() && is_sign(text[n])) ++n;
  return n;
}

// The pieces of one word: of all pairs of neighbours that merge, those that became pieces first, left to right, until
// none is left.
class Word {
 public:
  Word(const ClipVocabulary& vocabulary, std::string_view bytes) : vocabulary_(vocabulary), parts_(bytes.size()) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto n = static_cast<int32_t>(i);
      parts_[i] = {vocabulary.byte_id[static_cast<uint8_t>(bytes[i])], n - 1, n + 1};
    }
    parts_.back().id += ClipVocabulary::kBytes;
    parts_.back().next = -1;
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(parts_.size()); ++i) consider(i);
  }

  void append_to(std::vector<int64_t>& ids) {
    std::vector<Merge> round;
    while (!merges_.empty()) {
      // One merge everywhere before any that it makes possible, as the specification goes over the whole word.
      round.clear();
      for (const int32_t made = merges_.top().made; !merges_.empty() && merges_.top().made == made; merges_.pop()) round.push_back(merges_.top());
      for (const Merge& m : round) apply(m);
    }
    for (int32_t i = 0; i >= 0; i = parts_[static_cast<size_t>(i)].next) ids.push_back(parts_[static_cast<size_t>(i)].id);
  }

 private:
  struct Part {
    int32_t id, before, next;  // id -1: merged into the one before
  };
  struct Merge {
    int32_t made, at, left, right;
    bool operator>(const Merge& other) const { return made != other.made ? made > other.made : at > other.at; }
  };
  Part& part(int32_t i) { return parts_[static_cast<size_t>(i)]; }

  void consider(int32_t at) {
    const int32_t next = at < 0 ? -1 : part(at).next;
    if (next < 0) return;
    const auto found = vocabulary_.merged.find(ClipVocabulary::pair_key(part(at).id, part(next).id));
    if (found != vocabulary_.merged.end()) merges_.push({found->second, at, part(at).id, part(next).id});
  }

  // Does nothing where one of the two has been merged since.
  void apply(const Merge& m) {
    Part& left = part(m.at);
    if (left.id != m.left || left.next < 0 || part(left.next).id != m.right) return;
    Part& right = part(left.next);
    left.id = m.made;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) part(left.next).before = m.at;
    consider(left.before);
    consider(m.at);
  }

  const ClipVocabulary& vocabulary_;
  std::vector<Part> parts_;
  std::priority_queue<Merge, std::vector<Merge>, std::greater<>> merges_;
};

}  // namespace

ClipTokenizer ClipTokenizer::open(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return {read_file(path, kMaxFileBytes), path};
  for (const char* name : {"merges.txt", "tokenizer.json", "bpe_simple_vocab_16e6.txt.gz"}) {
    const std::string file = path + "/" + name;
    if (std::filesystem::exists(file, ignored)) return {read_file(file, kMaxFileBytes), file};
  }
  throw Error(fmt::format("{}: holds no vocabulary of CLIP", path), "fetch CLIP's merges.txt, tokenizer.json or bpe_simple_vocab_16e6.txt.gz");
}

ClipTokenizer::ClipTokenizer(std::string_view bytes, const std::string& source) : vocabulary_(parse_clip_vocabulary(bytes, source)), path_(source) {}

std::vector<int64_t> ClipTokenizer::encode(std::string_view text) const {
  if (text.size() > kMaxTextBytes)
    throw Error(fmt::format("a prompt of {} bytes: at most {} are tokenised", text.size(), kMaxTextBytes), "shorten the prompt; the model reads some 50 words");
  const std::u32string words = to_lower(decode_utf8(clean_prompt(text)));
  std::vector<int64_t> ids = {start_id()};
  std::string bytes;
  for (size_t at = 0; at < words.size();) {
    const std::u32string_view rest = std::u32string_view(words).substr(at);
    const size_t n = word_length(rest);
    at += std::max<size_t>(n, 1);
    if (n == 0) continue;
    const std::u32string_view word = rest.substr(0, n);
    if (word == kStartText || word == kEndText) {
      ids.push_back(word == kStartText ? start_id() : end_id());
      continue;
    }
    bytes.clear();
    for (const char32_t c : word) append_utf8(bytes, c);
    Word(vocabulary_, bytes).append_to(ids);
  }
  ids.push_back(end_id());
  return ids;
}

void require_clip_context(const std::vector<int64_t>& ids, std::string_view prompt) {
  const auto n = static_cast<int64_t>(ids.size());
  if (n > kClipContext)
    throw usage_error(fmt::format("prompt {}: {} tokens, {} more than CLIP reads", quote_for_message(prompt), n, n - kClipContext),
                      "shorten the prompt, or leave out the dimensions that compare with it");
}

std::vector<int64_t> cut_to_viclip_context(std::vector<int64_t> ids) {
  if (static_cast<int64_t>(ids.size()) <= kViclipContext) return ids;
  const int64_t end = ids.back();
  ids.resize(static_cast<size_t>(kViclipContext));
  ids.back() = end;
  return ids;
}

}  // namespace megaslide
