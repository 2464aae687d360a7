#include "base/utf8.h"

#include <limits>

#include <fmt/format.h>

namespace megaslide {
namespace {

constexpr char32_t kReplacement = 0xfffd;

bool is_surrogate(char32_t c) { return c >= 0xd800 && c < 0xe000; }

bool unsafe_to_print(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || (c >= 0x202a && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

std::string escaped(std::string_view text, std::string_view kept, size_t most = std::numeric_limits<size_t>::max()) {
  std::string out;
  for (size_t at = 0, shown = 0; at < text.size(); ++shown) {
    if (shown == most) return out + "…";
    const auto [code, bytes] = code_point_at(text, at);
    if (bytes == 0) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    else if (unsafe_to_print(code) && kept.find(text[at]) == std::string_view::npos) out += fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
    else out += text.substr(at, bytes);
    at += bytes == 0 ? 1 : bytes;
  }
  return out;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[at + k]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t bytes = first >= 0xf0 && first <= 0xf4 ? 4 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xc2 && first < 0xe0 ? 2 : 0;
  if (bytes == 0 || at + bytes > text.size()) return {kReplacement, 0};
  char32_t code = first & (0xffu >> (bytes + 1));
  for (size_t k = 1; k < bytes; ++k) {
    if ((byte(k) & 0xc0) != 0x80) return {kReplacement, 0};
    code = code << 6 | (byte(k) & 0x3fu);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[bytes] || code > 0x10ffff || is_surrogate(code)) return {kReplacement, 0};
  return {code, bytes};
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = code_point_at(text, at).bytes;
    if (bytes == 0) return at;
    at += bytes;
  }
  return text.size();
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [code, bytes] = code_point_at(text, at);
    out += code;
    at += bytes == 0 ? 1 : bytes;
  }
  return out;
}

void append_utf8(std::string& out, char32_t code) {
  if (code > 0x10ffff || is_surrogate(code)) code = kReplacement;
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6), tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12), tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0 | code >> 18), tail(12), tail(6), tail(0);
  }
}

std::string printable(std::string_view text) { return escaped(text, {}); }
std::string printable_lines(std::string_view text) { return escaped(text, "\n\t"); }
std::string quote_for_message(std::string_view text) { return '"' + escaped(text, {}, 100) + '"'; }
std::string quote_unless_plain(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) return quote_for_message(text);
  return std::string(text);
}

}  // namespace megaslide
