#include "base/json_cursor.h"

#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace megaslide {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

JsonCursor::JsonCursor(std::string_view text, std::string source, int64_t byte_base)
    : text_(text), source_(std::move(source)), byte_base_(byte_base) {
  if (const size_t bad = find_invalid_utf8(text_); bad != text_.size()) fail(bad, "not valid UTF-8");
}

std::string JsonCursor::where(size_t offset) const {
  if (byte_base_ >= 0) return fmt::format("byte {}", byte_base_ + static_cast<int64_t>(offset));
  size_t line = 1, start = 0;
  for (size_t i = 0; i < offset && i < text_.size(); ++i)
    if (text_[i] == '\n') ++line, start = i + 1;
  return fmt::format("{}:{}", line, offset - start + 1);
}

void JsonCursor::fail(size_t offset, const std::string& message) const {
  throw Error(fmt::format("{}{}{}: {}", source_, byte_base_ >= 0 ? ": " : ":", where(offset), message));
}

void JsonCursor::duplicate_key(size_t offset, std::string_view key) const {
  fail(offset, "duplicate key " + quote_for_message(key));
}

void JsonCursor::space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
}

char JsonCursor::peek() {
  space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

// A value of another type where `wanted` is needed, or no JSON at all.
void JsonCursor::mismatch(const char* wanted) {
  const char c = peek();
  const char* found = c == '{' ? "an object" : c == '[' ? "an array" : c == '"' ? "a string"
                      : c == '-' || digit(c) ? "a number" : c == 't' || c == 'f' ? "a boolean"
                      : c == 'n' ? "null" : c == 'N' || c == 'I' ? "NaN or Infinity, which JSON does not have" : nullptr;
  if (found) fail(at_, fmt::format("expected {}, found {}", wanted, found));
  syntax(wanted);
}

void JsonCursor::expect(char c, const char* what) {
  if (peek() != c) syntax(what);
  ++at_;
}

void JsonCursor::syntax(const char* what) const {
  if (at_ == text_.size()) fail(at_, fmt::format("not valid JSON: it ends where {} should be", what));
  fail(at_, fmt::format("not valid JSON: expected {}, found {}", what, quote_for_message(text_.substr(at_, 1))));
}

void JsonCursor::enter() {
  if (++depth_ > kMaxDepth) fail(at_, fmt::format("not valid JSON: nested deeper than {} levels", kMaxDepth));
}

void JsonCursor::begin_object() {
  if (peek() != '{') mismatch("an object");
  ++at_;
  enter();
}

bool JsonCursor::next_key(bool& first, std::string& key) {
  if (peek() == '}') {
    ++at_;
    --depth_;
    return false;
  }
  if (!first) expect(',', "',' or '}'");
  first = false;
  if (peek() != '"') syntax("a key in double quotes");
  key_at_ = at_;
  key = raw_string();
  expect(':', "':'");
  return true;
}

void JsonCursor::begin_array() {
  if (peek() != '[') mismatch("an array");
  ++at_;
  enter();
}

bool JsonCursor::next_element(bool& first) {
  if (peek() == ']') {
    ++at_;
    --depth_;
    return false;
  }
  if (!first) {
    expect(',', "',' or ']'");
    if (peek() == ']') fail(at_, "not valid JSON: ',' before ']'");
  }
  first = false;
  return true;
}

uint32_t JsonCursor::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const int d = digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (d < 0) fail(at_, "not valid JSON: \\u needs four hexadecimal digits");
    value = value << 4 | static_cast<uint32_t>(d);
  }
  return value;
}

void JsonCursor::append_escape(std::string& out) {
  const size_t start = at_ - 1;
  const char c = at_ < text_.size() ? text_[at_++] : '\0';
  switch (c) {
    case '"': case '\\': case '/': out += c; return;
    case 'b': out += '\b'; return;
    case 'f': out += '\f'; return;
    case 'n': out += '\n'; return;
    case 'r': out += '\r'; return;
    case 't': out += '\t'; return;
    case 'u': break;
    default: fail(start, "not valid JSON: unknown escape in a string");
  }
  uint32_t code = hex4();
  if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const uint32_t low = hex4();
    if (low < 0xdc00 || low > 0xdfff) fail(start, "a lone surrogate in a string cannot be UTF-8");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xd800 && code < 0xe000) {
    fail(start, "a lone surrogate in a string cannot be UTF-8");
  }
  append_utf8(out, code);
}

std::string JsonCursor::raw_string() {
  const size_t start = at_++;
  std::string out;
  for (;;) {
    const size_t run = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<unsigned char>(text_[at_]) >= 0x20) ++at_;
    out.append(text_, run, at_ - run);
    if (at_ == text_.size()) fail(start, "not valid JSON: a string that does not end");
    if (text_[at_] == '"') return ++at_, out;
    if (text_[at_] != '\\') fail(at_, "not valid JSON: a control character in a string");
    ++at_;
    append_escape(out);
  }
}

std::string JsonCursor::string(const char* what) {
  if (peek() != '"') mismatch(fmt::format("a string for {}", what).c_str());
  return raw_string();
}

std::string_view JsonCursor::raw_number(const char* what) {
  const char c = peek();
  if (c != '-' && !digit(c)) mismatch(fmt::format("a number for {}", what).c_str());
  const size_t start = at_;
  const auto digits = [&] {
    if (at_ == text_.size() || !digit(text_[at_])) fail(at_, "not valid JSON: a digit is missing in a number");
    while (at_ < text_.size() && digit(text_[at_])) ++at_;
  };
  if (c == '-') ++at_;
  if (at_ < text_.size() && text_[at_] == '0') {
    if (++at_ < text_.size() && digit(text_[at_])) fail(start, "not valid JSON: a number with a leading zero");
  } else {
    digits();
  }
  if (at_ < text_.size() && text_[at_] == '.') ++at_, digits();
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
  }
  return text_.substr(start, at_ - start);
}

bool JsonCursor::next_is_integer() {
  space();
  size_t i = at_ + (at_ < text_.size() && text_[at_] == '-');
  while (i < text_.size() && digit(text_[i])) ++i;
  return i == text_.size() || (text_[i] != '.' && text_[i] != 'e' && text_[i] != 'E');
}

uint64_t JsonCursor::u64(const char* what) {
  space();
  const size_t start = at_;
  const std::string_view number_text = raw_number(what);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(number_text.data(), number_text.data() + number_text.size(), value);
  if (error != std::errc() || end != number_text.data() + number_text.size())
    fail(start, fmt::format("expected an integer from 0 to 2^64-1 for {}, found {}", what, number_text.substr(0, 40)));
  return value;
}

double JsonCursor::number(const char* what) {
  space();
  const size_t start = at_;
  const std::string_view number_text = raw_number(what);
  double value = 0;
  const auto result = std::from_chars(number_text.data(), number_text.data() + number_text.size(), value);
  if (result.ec != std::errc() || !std::isfinite(value))
    fail(start, fmt::format("{} is out of range for {}", number_text.substr(0, 40), what));
  return value;
}

void JsonCursor::word(const char* expected) {
  for (const char* p = expected; *p; ++p, ++at_)
    if (at_ == text_.size() || text_[at_] != *p) fail(at_, "not valid JSON: an unknown word");
}

bool JsonCursor::boolean(const char* what) {
  const char c = peek();
  if (c != 't' && c != 'f') mismatch(fmt::format("true or false for {}", what).c_str());
  word(c == 't' ? "true" : "false");
  return c == 't';
}

bool JsonCursor::null() {
  if (peek() != 'n') return false;
  word("null");
  return true;
}

void JsonCursor::skip_value() {
  bool first = true;
  std::string key;
  switch (peek()) {
    case '{':
      begin_object();
      while (next_key(first, key)) skip_value();
      return;
    case '[':
      begin_array();
      while (next_element(first)) skip_value();
      return;
    case '"': raw_string(); return;
    case 't': case 'f': boolean("a value"); return;
    case 'n': null(); return;
    default:
      if (peek() == '-' || digit(peek())) raw_number("a value");
      else mismatch("a value");
  }
}

void JsonCursor::end() {
  space();
  if (at_ != text_.size()) fail(at_, "not valid JSON: text after the end");
}

}  // namespace megaslide
