// Text files as people have them, to UTF-8.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

struct DecodedText {
  std::string text;                 // UTF-8, lines end with LF
  std::vector<std::string> notes;   // what was assumed: "byte 0x92 at offset 7 is not UTF-8: read as Windows-1252"
};

// A byte-order mark decides between UTF-8 and UTF-16 and is removed; what is not UTF-8 is read as Windows-1252 with a
// note; CRLF and CR become LF; NUL characters are removed with a note.
DecodedText decode_text(std::string_view bytes);

// Without white space at both ends (ASCII, no-break and ideographic blanks).
std::string trim(std::string_view text);

}  // namespace megaslide
