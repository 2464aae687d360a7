// A strict JSON (RFC 8259) pull parser over text in memory, with a position in every message. Stricter than most: the
// whole text must be UTF-8, nesting is bounded, integers are exact 64-bit values, and callers can reject duplicate keys.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace megaslide {

class JsonCursor {
 public:
  static constexpr int kMaxDepth = 128;

  // `source` names the text in messages. With `byte_base` >= 0 positions are "byte N" counted from there (a header
  // inside a binary file), otherwise "line:column". Throws when the text is not UTF-8.
  JsonCursor(std::string_view text, std::string source, int64_t byte_base = -1);

  // Objects and arrays:  bool first = true; c.begin_object(); while (c.next_key(first, key)) { ... read one value ... }
  void begin_object();
  bool next_key(bool& first, std::string& key);  // false after consuming '}'
  void begin_array();
  bool next_element(bool& first);                // false after consuming ']'

  std::string string(const char* what);  // unescaped; `what` names the value in messages: "dtype"
  uint64_t u64(const char* what);        // no sign, fraction or exponent
  double number(const char* what);
  bool boolean(const char* what);
  bool null();        // consumes "null" if it comes next
  void skip_value();  // any value
  void end();         // only white space may be left

  // First character of the next value, after white space; 0 at the end.
  char peek();
  bool next_is_integer();  // the number that comes next has neither fraction nor exponent
  size_t offset() const { return at_; }
  std::string where(size_t offset) const;  // "byte 17" or "3:7"
  const std::string& source() const { return source_; }

  // Throws Error "SOURCE: POSITION: message" or "SOURCE:3:7: message".
  [[noreturn]] void fail(size_t offset, const std::string& message) const;
  [[noreturn]] void duplicate_key(size_t offset, std::string_view key) const;
  size_t key_offset() const { return key_at_; }  // where the last key began

 private:
  void space();
  void expect(char c, const char* what);
  [[noreturn]] void syntax(const char* what) const;
  [[noreturn]] void mismatch(const char* wanted);
  std::string raw_string();
  uint32_t hex4();
  void append_escape(std::string& out);
  std::string_view raw_number(const char* what);
  void word(const char* expected);
  void enter();

  std::string_view text_;
  std::string source_;
  int64_t byte_base_;
  size_t at_ = 0, key_at_ = 0;
  int depth_ = 0;
};

}  // namespace megaslide
