// Character references of HTML in captions: "&amp;", "&#39;", "&#x27;".
#pragma once
#include <string>
#include <string_view>

namespace megaslide {

// By the rules of HTML (also those for broken references), as Python's html.unescape: "&lt" counts without its ";",
// unknown names stay, references to surrogates and beyond U+10FFFF give U+FFFD, those to control characters nothing.
std::u32string html_unescape(std::u32string_view text);

// The careful form of ftfy: only whole references with their ";", and of the names that HTML knows in small letters
// alone also those in capitals ("&EACUTE;").
std::u32string html_unescape_strict(std::u32string_view text);

}  // namespace megaslide
