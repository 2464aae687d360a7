// The cleaning of a prompt before its tokenizer (spec wan.md B.8), as diffusers does it with ftfy 6.3 at hand.
#pragma once
#include <string>
#include <string_view>

namespace megaslide {

// (1) What ftfy.fix_text does short of repairing mojibake, line by line until nothing changes: HTML references (up to the
// first line with a "<"), C1 controls as Windows-1252, Latin ligatures, full- and half-width forms, straight quotes,
// line breaks, terminal escapes and control characters, NFC. (2) html_unescape twice. (3)–(5) Runs of white space (as
// Python's \s) become one blank, outer ones go. Bytes that are no UTF-8 become U+FFFD. Time and memory are linear.
// Text that looks like UTF-8 once read as Windows-1252 is left as it is, with a warning.
std::string clean_prompt(std::string_view text);

// Where text looks like that ("cafÃ©" → "Ã©"); empty where it does not.
std::string find_mojibake(std::string_view text);

}  // namespace megaslide
