// Base64 (RFC 4648) for data URIs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace megaslide {

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto at = [&](size_t k) {
      return i + k < bytes.size() ? static_cast<uint32_t>(static_cast<uint8_t>(bytes[i + k])) : 0u;
    };
    const uint32_t v = at(0) << 16 | at(1) << 8 | at(2);
    out += kLetters[v >> 18];
    out += kLetters[(v >> 12) & 63];
    out += i + 1 < bytes.size() ? kLetters[(v >> 6) & 63] : '=';
    out += i + 2 < bytes.size() ? kLetters[v & 63] : '=';
  }
  return out;
}

}  // namespace megaslide
