#include "text/clip_vocabulary.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_cursor.h"
#include "base/utf8.h"
#include "text/gunzip.h"

namespace megaslide {
namespace {

constexpr int64_t kMaxUnpacked = 16 << 20;  // OpenAI's has 3.2 MB
constexpr size_t kLongestPiece = 1024;      // bytes; the longest published has 60. Bounds what a chain of merges can double to
constexpr const char* kRemedy = "use CLIP's published merges.txt, bpe_simple_vocab_16e6.txt.gz or tokenizer.json";
constexpr const char* kEndOfWord = "</w>";
constexpr const char *kStart = "<|startoftext|>", *kEnd = "<|endoftext|>";

// Builds a vocabulary merge by merge, with the pieces' spellings beside it.
class Builder {
 public:
  Builder() {
    int32_t next = 0;
    const auto add = [&](int first, int last, int shift) {
      for (int b = first; b <= last; ++b) {
        std::string spelling;
        append_utf8(spelling, static_cast<char32_t>(b + shift));
        vocabulary_.byte_id[b] = next;
        ids_.emplace(spelling, next);
        ids_.emplace(spelling + kEndOfWord, next + ClipVocabulary::kBytes);
        ++next;
      }
    };
    // Printable bytes stand for themselves; the others, in their order, for U+0100 … U+0143. They have the last ids.
    add(0x21, 0x7E, 0), add(0xA1, 0xAC, 0), add(0xAE, 0xFF, 0);
    add(0x00, 0x20, 0x100), add(0x7F, 0xA0, 0x100 + 0x21 - 0x7F), add(0xAD, 0xAD, 0x143 - 0xAD);
  }

  bool full() const { return vocabulary_.merged.size() == ClipVocabulary::kPublishedMerges; }
  // What is wrong with the merge; empty where it is added.
  std::string add(const std::string& left, const std::string& right) {
    const auto a = ids_.find(left), b = ids_.find(right);
    if (a == ids_.end() || b == ids_.end())
      return fmt::format("merges {}, which is no piece so far", quote_for_message(a == ids_.end() ? left : right));
    const std::string piece = left + right;
    if (piece.size() > kLongestPiece) return fmt::format("makes a piece of {} bytes", piece.size());
    const int32_t id = vocabulary_.start();
    const uint64_t key = ClipVocabulary::pair_key(a->second, b->second);
    if (!ids_.emplace(piece, id).second) return fmt::format("makes {}, which is a piece already", quote_for_message(piece));
    vocabulary_.merged.emplace(key, id);
    return {};
  }
  // All merges are there: start and end follow.
  void close() {
    const int32_t start = vocabulary_.start();
    ids_.emplace(kStart, start), ids_.emplace(kEnd, start + 1);
  }
  const std::unordered_map<std::string, int32_t>& ids() const { return ids_; }
  ClipVocabulary take() { return std::move(vocabulary_); }

 private:
  ClipVocabulary vocabulary_;
  std::unordered_map<std::string, int32_t> ids_;
};

// "left right", blanks around them; nothing for any other count of words.
std::optional<std::pair<std::string, std::string>> split_pair(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::string words[2];
  size_t n = 0;
  for (size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    if (n == 2) return std::nullopt;
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words[n++] = line.substr(at, end - at);
    at = line.find_first_not_of(kBlanks, end);
  }
  if (n != 2) return std::nullopt;
  return std::pair(std::move(words[0]), std::move(words[1]));
}

ClipVocabulary from_lines(std::string_view text, const std::string& source) {
  Builder builder;
  int64_t number = 0;
  for (size_t at = 0; at < text.size() && !builder.full();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (number == 1 && line.find("#version") != std::string_view::npos) continue;
    if (at >= text.size() && line.empty()) break;
    const auto pair = split_pair(line);
    const std::string problem = pair ? builder.add(pair->first, pair->second) : fmt::format("is no pair of pieces: {}", quote_for_message(line));
    if (!problem.empty()) throw Error(fmt::format("{}: line {}: {}", source, number, problem), kRemedy);
  }
  if (builder.ids().size() == ClipVocabulary::kFirstMerge) throw Error(fmt::format("{}: holds no merges", source), kRemedy);
  return builder.take();
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs read_pairs(JsonCursor& c) {
  Pairs pairs;
  bool first = true;
  c.begin_array();
  while (c.next_element(first)) {
    const size_t at = c.offset();
    std::optional<std::pair<std::string, std::string>> pair;
    if (c.peek() == '[') {
      std::vector<std::string> words;
      bool first_word = true;
      c.begin_array();
      while (c.next_element(first_word)) words.push_back(c.string("piece"));
      if (words.size() == 2) pair.emplace(words[0], words[1]);
    } else {
      pair = split_pair(c.string("merge"));
    }
    if (!pair) c.fail(at, "a merge is no pair of pieces");
    pairs.push_back(std::move(*pair));
  }
  return pairs;
}

struct JsonModel {
  std::string type;
  std::optional<Pairs> merges;
  std::unordered_map<std::string, uint64_t> ids;
};

JsonModel read_model(JsonCursor& c) {
  JsonModel model;
  bool first = true;
  std::string key;
  c.begin_object();
  while (c.next_key(first, key)) {
    if (key == "type") {
      model.type = c.string("type");
    } else if (key == "merges") {
      model.merges = read_pairs(c);
    } else if (key == "vocab") {
      bool first_piece = true;
      std::string piece;
      c.begin_object();
      while (c.next_key(first_piece, piece))
        if (!model.ids.emplace(piece, c.u64("id")).second) c.duplicate_key(c.key_offset(), piece);
    } else {
      c.skip_value();
    }
  }
  return model;
}

// Start and end may stand among the added tokens alone.
void compare_ids(const Builder& builder, const JsonModel& model, const std::string& source) {
  for (const auto& [piece, id] : builder.ids()) {
    const auto found = model.ids.find(piece);
    if (found == model.ids.end()) {
      if (piece == kStart || piece == kEnd) continue;
      throw Error(fmt::format("{}: its vocabulary lacks {}", source, quote_for_message(piece)), kRemedy);
    }
    if (found->second != static_cast<uint64_t>(id))
      throw Error(fmt::format("{}: {} has the id {}, not {} as its place says", source, quote_for_message(piece), found->second, id), kRemedy);
  }
  for (const auto& [piece, id] : model.ids)
    if (!builder.ids().contains(piece)) throw Error(fmt::format("{}: no merge makes {}", source, quote_for_message(piece)), kRemedy);
}

ClipVocabulary from_json(std::string_view text, const std::string& source) {
  JsonCursor c(text, source);
  JsonModel model;
  bool first = true;
  std::string key;
  c.begin_object();
  while (c.next_key(first, key)) {
    if (key == "model" && c.peek() == '{') model = read_model(c);
    else c.skip_value();
  }
  c.end();
  if (model.type != "BPE" || !model.merges || model.merges->empty())
    throw Error(fmt::format("{}: its model is no byte-pair encoding", source), kRemedy);
  Builder builder;
  for (const auto& [left, right] : *model.merges) {
    const std::string problem = builder.full() ? "is one more than CLIP has" : builder.add(left, right);
    if (!problem.empty()) throw Error(fmt::format("{}: merge {} {}", source, quote_for_message(left + " " + right), problem), kRemedy);
  }
  builder.close();
  compare_ids(builder, model, source);
  return builder.take();
}

}  // namespace

ClipVocabulary parse_clip_vocabulary(std::string_view bytes, const std::string& source) {
  if (is_gzip(bytes)) return from_lines(gunzip(bytes, source, kMaxUnpacked), source);
  const size_t start = bytes.find_first_not_of(" \t\r\n");
  if (start != std::string_view::npos && bytes[start] == '{') return from_json(bytes, source);
  return from_lines(bytes, source);
}

}  // namespace megaslide
