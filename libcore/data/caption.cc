#include "data/caption.h"

#include <array>
#include <cstdint>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

std::string from_utf16(std::string_view bytes, bool little, std::vector<std::string>& notes) {
  std::string out;
  bool broken = bytes.size() % 2 != 0;
  const auto unit = [&](size_t i) {
    const auto a = static_cast<unsigned char>(bytes[i]), b = static_cast<unsigned char>(bytes[i + 1]);
    return static_cast<uint32_t>(little ? a | b << 8 : a << 8 | b);
  };
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    uint32_t c = unit(i);
    if (c >= 0xd800 && c < 0xe000) {
      const uint32_t low = c < 0xdc00 && i + 3 < bytes.size() ? unit(i + 2) : 0;
      if (low >= 0xdc00 && low < 0xe000) {
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        i += 2;
      } else {
        c = 0xfffd;
        broken = true;
      }
    }
    append_utf8(out, c);
  }
  if (broken) notes.push_back("damaged UTF-16: unreadable characters became U+FFFD");
  return out;
}

// Bytes 0x80 … 0x9f of Windows-1252; the five that it leaves undefined keep their C1 meaning.
constexpr std::array<uint16_t, 32> kCp1252 = {0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030, 0x160,
                                              0x2039, 0x152,  0x8d,   0x17d,  0x8f,   0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
                                              0x2013, 0x2014, 0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e, 0x178};

std::string from_cp1252(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto u = static_cast<unsigned char>(c);
    append_utf8(out, u >= 0x80 && u < 0xa0 ? kCp1252[u - 0x80u] : u);
  }
  return out;
}

}  // namespace

DecodedText decode_text(std::string_view bytes) {
  DecodedText out;
  std::string text;
  if (bytes.substr(0, 2) == "\xff\xfe" || bytes.substr(0, 2) == "\xfe\xff") {
    text = from_utf16(bytes.substr(2), bytes[0] == '\xff', out.notes);
  } else {
    if (bytes.substr(0, 3) == "\xef\xbb\xbf") bytes.remove_prefix(3);
    const size_t bad = find_invalid_utf8(bytes);
    if (bad < bytes.size()) {
      out.notes.push_back(fmt::format("byte 0x{:02x} at offset {} is not UTF-8: read as Windows-1252", static_cast<unsigned char>(bytes[bad]), bad));
      text = from_cp1252(bytes);
    } else {
      text = bytes;
    }
  }
  size_t nuls = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 0) ++nuls;
    else if (text[i] != '\r') out.text += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n') out.text += '\n';
  }
  if (nuls > 0) out.notes.push_back(fmt::format("{} NUL character{} removed", nuls, nuls == 1 ? "" : "s"));
  return out;
}

std::string trim(std::string_view text) {
  static constexpr std::array<std::string_view, 11> kBlanks = {" ", "\t", "\n", "\r", "\v", "\f", "\xc2\xa0", "\xe3\x80\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xef\xbb\xbf"};
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view b : kBlanks) {
      while (text.size() >= b.size() && text.substr(0, b.size()) == b) text.remove_prefix(b.size()), again = true;
      while (text.size() >= b.size() && text.substr(text.size() - b.size()) == b) text.remove_suffix(b.size()), again = true;
    }
  }
  return std::string(text);
}

}  // namespace megaslide
