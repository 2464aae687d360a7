#include "text/spiece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr size_t kMaxPieces = size_t{1} << 20;  // UMT5 has 256,000
constexpr size_t kMaxPieceBytes = 256;          // sentencepiece itself learns pieces of 16 characters
constexpr int64_t kUnigram = 1;

class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& source, size_t base = 0) : bytes_(bytes), source_(source), base_(base) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: byte {}: {}", source_, base_ + field_at_, what), "fetch the file again: it is damaged or no sentencepiece model");
  }

  // Reads the next field's head; false at the end.
  bool next() {
    field_at_ = at_;
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field_ = static_cast<uint32_t>(key >> 3);
    wire_ = static_cast<int>(key & 7);
    if (field_ == 0 || key >> 3 > 0x1fffffff) fail("not a protobuf field");
    return true;
  }
  uint32_t field() const { return field_; }

  uint64_t integer() {
    if (wire_ != 0) mismatch("an integer");
    return varint();
  }
  float number() {
    if (wire_ != 5) mismatch("a 32-bit number");
    const std::string_view s = take(4);
    uint32_t u;
    std::memcpy(&u, s.data(), 4);
    return std::bit_cast<float>(u);
  }
  std::string_view text() {
    if (wire_ != 2) mismatch("bytes");
    const uint64_t n = varint();
    if (n > bytes_.size() - at_) fail(fmt::format("field {} says it has {} bytes; {} are left", field_, n, bytes_.size() - at_));
    return take(static_cast<size_t>(n));
  }
  WireReader message() {
    const std::string_view s = text();
    return {s, source_, base_ + at_ - s.size()};
  }
  void skip() {
    switch (wire_) {
      case 0: varint(); return;
      case 1: take(8); return;
      case 2: text(); return;
      case 5: take(4); return;
      default: fail(fmt::format("field {} has a wire type that is no longer used", field_));
    }
  }

 private:
  [[noreturn]] void mismatch(const char* wanted) const { fail(fmt::format("field {} is not {}", field_, wanted)); }
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) fail("the file ends inside a number");
      const auto b = static_cast<unsigned char>(bytes_[at_++]);
      v |= static_cast<uint64_t>(b & 0x7f) << shift;
      if (b < 0x80) return v;
    }
    fail("a number of more than 64 bits");
  }
  std::string_view take(size_t n) {
    if (n > bytes_.size() - at_) fail("the file ends inside a field");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }

  std::string_view bytes_;
  const std::string& source_;
  size_t base_, at_ = 0, field_at_ = 0;
  uint32_t field_ = 0;
  int wire_ = 0;
};

// A piece's text is all of it meaningful: sentencepiece keeps pieces as C strings.
std::string piece_problem(const SentencePiece& p) {
  if (p.text.empty()) return "has no text";
  if (p.text.size() > kMaxPieceBytes) return fmt::format("has {} bytes; at most {} are allowed", p.text.size(), kMaxPieceBytes);
  if (p.text.find('\0') != std::string_view::npos) return "contains a NUL";
  if (find_invalid_utf8(p.text) != p.text.size()) return "is not UTF-8";
  if (!std::isfinite(p.score) || std::abs(p.score) > 1e9F) return fmt::format("has a score of {}", p.score);
  if (p.type < SentencePiece::kNormal || p.type > SentencePiece::kByte) return fmt::format("is of type {}; there are 1 to 6", p.type);
  return {};
}

void read_piece(WireReader message, SentencePieceModel& model) {
  SentencePiece p;
  while (message.next()) {
    switch (message.field()) {
      case 1: p.text = message.text(); break;
      case 2: p.score = message.number(); break;
      case 3: p.type = static_cast<int>(std::min<uint64_t>(message.integer(), 99)); break;
      default: message.skip();
    }
  }
  if (const std::string problem = piece_problem(p); !problem.empty()) message.fail(fmt::format("piece {} {}", model.pieces.size(), problem));
  if (model.pieces.size() == kMaxPieces) message.fail(fmt::format("more than {} pieces", kMaxPieces));
  model.pieces.push_back(p);
}

std::string_view special_piece(WireReader& r) {
  const std::string_view s = r.text();
  if (s.empty() || s.size() > kMaxPieceBytes || find_invalid_utf8(s) != s.size()) r.fail("the name of a special piece is not UTF-8, empty or long");
  return s;
}

void read_trainer(WireReader message, SentencePieceModel& model) {
  while (message.next()) {
    switch (message.field()) {
      case 3:
        if (const uint64_t type = message.integer(); type != kUnigram)
          message.fail(fmt::format("a sentencepiece model of type {} (1 unigram, 2 BPE, 3 word, 4 char); UMT5's is a unigram model", type));
        break;
      case 24: model.whitespace_as_suffix = message.integer() != 0; break;
      case 35: model.byte_fallback = message.integer() != 0; break;
      case 45: model.unknown = special_piece(message); break;
      case 46: model.begin = special_piece(message); break;
      case 47: model.end = special_piece(message); break;
      case 48: model.padding = special_piece(message); break;
      default: message.skip();
    }
  }
}

void read_normaliser(WireReader message, SentencePieceModel& model) {
  while (message.next()) {
    switch (message.field()) {
      case 1: model.normaliser = message.text(); break;
      case 2:
        model.charsmap = message.text();
        if (const std::string problem = check_charsmap(model.charsmap); !problem.empty()) message.fail(problem);
        break;
      case 3: model.add_dummy_prefix = message.integer() != 0; break;
      case 4: model.remove_extra_whitespaces = message.integer() != 0; break;
      case 5: model.escape_whitespaces = message.integer() != 0; break;
      default: message.skip();
    }
  }
}

std::string byte_piece(int b) { return fmt::format("<0x{:02X}>", b); }

// What concerns the pieces together.
std::string pieces_problem(SentencePieceModel& model) {
  std::unordered_set<std::string_view> seen(model.pieces.size());
  int unknown = 0, normal = 0, bytes = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& p = model.pieces[id];
    if (!seen.insert(p.text).second) return fmt::format("piece {} {} was there before", id, quote_for_message(p.text));
    unknown += p.type == SentencePiece::kUnknown;
    normal += p.type == SentencePiece::kNormal;
    bytes += p.type == SentencePiece::kByte;
  }
  if (unknown != 1) return fmt::format("{} pieces stand for unknown text; one is wanted", unknown);
  if (normal == 0) return "none of its pieces is ordinary text";
  if (bytes == 0) return {};
  for (int b = 0; b < 256; ++b)
    if (!seen.count(byte_piece(b))) return fmt::format("it has {} byte pieces, but not {}", bytes, byte_piece(b));
  if (bytes != 256) return fmt::format("it has {} byte pieces; 256 are wanted", bytes);
  model.all_bytes = true;
  return {};
}

void put_varint(std::string& out, uint64_t v) {
  for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
  out += static_cast<char>(v);
}
void put_integer(std::string& out, uint32_t field, uint64_t v) {
  put_varint(out, uint64_t{field} << 3);
  put_varint(out, v);
}
void put_bytes(std::string& out, uint32_t field, std::string_view v) {
  put_varint(out, uint64_t{field} << 3 | 2);
  put_varint(out, v.size());
  out += v;
}
void put_float(std::string& out, uint32_t field, float v) {
  put_varint(out, uint64_t{field} << 3 | 5);
  const auto u = std::bit_cast<uint32_t>(v);
  out.append(reinterpret_cast<const char*>(&u), 4);
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source) {
  SentencePieceModel model;
  WireReader r(bytes, source);
  while (r.next()) {
    switch (r.field()) {
      case 1: read_piece(r.message(), model); break;
      case 2: read_trainer(r.message(), model); break;
      case 3: read_normaliser(r.message(), model); break;
      default: r.skip();
    }
  }
  std::string problem = model.pieces.empty() ? "holds no pieces" : pieces_problem(model);
  if (!problem.empty()) throw Error(fmt::format("{}: {}", source, problem), "fetch the file again: it is damaged or no sentencepiece model");
  return model;
}

std::string serialize_sentencepiece_model(const SentencePieceModel& model) {
  std::string out, part;
  for (const SentencePiece& p : model.pieces) {
    part.clear();
    put_bytes(part, 1, p.text);
    put_float(part, 2, p.score);
    put_integer(part, 3, static_cast<uint64_t>(p.type));
    put_bytes(out, 1, part);
  }
  part.clear();
  put_integer(part, 3, kUnigram);
  put_integer(part, 24, model.whitespace_as_suffix);
  put_integer(part, 35, model.all_bytes);
  put_bytes(part, 45, model.unknown);
  put_bytes(part, 46, model.begin);
  put_bytes(part, 47, model.end);
  put_bytes(part, 48, model.padding);
  put_bytes(out, 2, part);
  part.clear();
  put_bytes(part, 1, model.normaliser);
  put_bytes(part, 2, model.charsmap);
  put_integer(part, 3, model.add_dummy_prefix);
  put_integer(part, 4, model.remove_extra_whitespaces);
  put_integer(part, 5, model.escape_whitespaces);
  put_bytes(out, 3, part);
  return out;
}

}  // namespace megaslide
