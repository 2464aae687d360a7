// Text in UTF-8: decoding, finding what is none, and printing text of others.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace megaslide {

struct CodePoint {
  char32_t code;
  size_t bytes;  // 0: what stands there is not UTF-8 (overlong, a surrogate, above U+10FFFF, cut short)
};
CodePoint code_point_at(std::string_view text, size_t at);  // at < text.size()

// Offset of the first byte that is not part of valid UTF-8; text.size() when all is valid.
size_t find_invalid_utf8(std::string_view text);

// Code points of `text`; bytes that are no UTF-8 become U+FFFD, one each.
std::u32string decode_utf8(std::string_view text);
void append_utf8(std::string& out, char32_t code);  // values that are no character give U+FFFD

// What a terminal may be given of text of others: characters that control it, end a line or turn the reading direction become
// \uNNNN, bytes that are no UTF-8 \xNN. Lines and tabs stay in `printable_lines`.
std::string printable(std::string_view text);
std::string printable_lines(std::string_view text);

// Printable, in double quotes, cut after about 100 characters.
std::string quote_for_message(std::string_view text);
// The same, but printable ASCII as it is.
std::string quote_unless_plain(std::string_view text);

}  // namespace megaslide
