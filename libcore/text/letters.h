// Letters, numbers and small letters of Unicode, as a tokenizer for words asks for them.
#pragma once
#include <string>

namespace megaslide {

// Of Unicode 14.
bool is_letter(char32_t c);  // general category L
bool is_number(char32_t c);  // general category N

// Full lower-casing (Unicode Standard 3.13, as Python's str.lower): "İ" gives two characters, and a sigma at the end of a
// word its final form.
std::u32string to_lower(const std::u32string& text);

}  // namespace megaslide
