// Unicode for comparing names: macOS stores "é" as two characters, most others as one, and some file systems ignore
// case.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

// Normalisation form C (Unicode Standard Annex 15), Hangul included.
std::u32string to_nfc(const std::u32string& text);
std::string to_nfc(std::string_view text);

// Simple case folding: "Façade" and "FAÇADE" become equal. Lengths in characters do not change ("ß" stays).
std::u32string fold_case(std::u32string text);
std::string fold_case(std::string_view text);

}  // namespace megaslide
