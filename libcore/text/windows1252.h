// Bytes 0x80 … 0x9F in Windows-1252, which is what C1 control characters in web text are meant to be.
#pragma once

namespace megaslide {

// 0 where the encoding leaves the byte undefined.
inline constexpr char16_t kWindows1252[32] = {
    0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160, 0x2039, 0x0152, 0, 0x017D, 0,
    0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0, 0x017E, 0x0178};

// The character that a C1 control stands for; any other character, and an undefined one, is itself.
inline char32_t from_windows1252(char32_t c) {
  return c >= 0x80 && c < 0xA0 && kWindows1252[c - 0x80] != 0 ? kWindows1252[c - 0x80] : c;
}

}  // namespace megaslide
