#include "text/html.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "text/windows1252.h"

namespace megaslide {
namespace {

struct Entity {
  const char* name;
  char32_t first, second;  // second: 0 for none
  int flags;
};
struct Capital {
  char32_t small;
  char32_t capital[3];
};
constexpr int kBare = 1, kInCapitals = 2;
#include "text/html_entities.inc"

constexpr size_t kLongestName = 32;  // characters after "&" that are considered, as the standard's longest name

const Entity* find_entity(std::string_view name) {
  const auto* e = std::lower_bound(std::begin(kEntities), std::end(kEntities), name,
                                   [](const Entity& x, std::string_view v) { return x.name < v; });
  return e != std::end(kEntities) && e->name == name ? e : nullptr;
}

void append_entity(std::u32string& out, const Entity& e) {
  out += e.first;
  if (e.second != 0) out += e.second;
}

void append_capital(std::u32string& out, char32_t c) {
  if (c >= 'a' && c <= 'z') c -= 'a' - 'A';
  const auto* found = std::lower_bound(std::begin(kCapitals), std::end(kCapitals), c,
                                       [](const Capital& x, char32_t v) { return x.small < v; });
  if (found == std::end(kCapitals) || found->small != c) {
    out += c;
    return;
  }
  for (const char32_t x : found->capital)
    if (x != 0) out += x;
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
int hex_value(char32_t c) {
  return is_digit(c) ? static_cast<int>(c - '0') : c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a' + 10)
         : c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A' + 10) : -1;
}

// What a numeric reference stands for; 0 for nothing.
char32_t numeric_character(uint32_t n) {
  if (n == 0 || n > 0x10FFFF || (n >= 0xD800 && n < 0xE000)) return 0xFFFD;
  if (n >= 0x80 && n < 0xA0) return from_windows1252(n);  // as browsers read them
  const bool control = n < 9 || n == 0xB || (n >= 0xE && n < 0x20) || n == 0x7F;
  const bool no_character = (n >= 0xFDD0 && n <= 0xFDEF) || (n & 0xFFFE) == 0xFFFE;
  return control || no_character ? 0 : static_cast<char32_t>(n);
}

struct Numeric {
  size_t length;  // from the "&", with the ";" if there is one
  bool closed;
  char32_t value;
};

// "&#…" at `at`.
std::optional<Numeric> read_numeric(std::u32string_view text, size_t at) {
  size_t i = at + 2;
  const bool hex = i < text.size() && (text[i] == 'x' || text[i] == 'X');
  if (hex) ++i;
  const size_t first = i;
  uint32_t n = 0;
  for (; i < text.size() && (hex ? hex_value(text[i]) >= 0 : is_digit(text[i])); ++i)
    n = n > 0x10FFFF ? n : n * (hex ? 16 : 10) + static_cast<uint32_t>(hex_value(text[i]));
  if (i == first) return std::nullopt;
  const bool closed = i < text.size() && text[i] == ';';
  return Numeric{i - at + (closed ? 1 : 0), closed, numeric_character(n)};
}

// Characters that a name may hold in the loose form; the table's names are ASCII, so anything else ends a match.
bool ends_name(char32_t c) { return c == '\t' || c == '\n' || c == '\f' || c == ' ' || c == '<' || c == '&' || c == '#' || c == ';'; }

// The name after "&" at `at`: at most kLongestName characters. Beyond ASCII a name cannot match.
std::string read_name(std::u32string_view text, size_t at, bool (*stop)(char32_t)) {
  std::string name;
  for (size_t i = at + 1; i < text.size() && name.size() < kLongestName && !stop(text[i]); ++i)
    name += text[i] < 0x80 ? static_cast<char>(text[i]) : '\x7f';
  return name;
}

// Appends what the loose named reference at `at` stands for and returns its length; 0 where it is none.
size_t append_named(std::u32string& out, std::u32string_view text, size_t at) {
  std::string name = read_name(text, at, ends_name);
  const size_t after = at + 1 + name.size();
  const bool closed = after < text.size() && text[after] == ';';
  if (const Entity* e = find_entity(name); e && (closed || (e->flags & kBare))) {
    append_entity(out, *e);
    return name.size() + (closed ? 2 : 1);
  }
  for (size_t n = std::min(name.size(), size_t{31}); n >= 2; --n) {  // the longest prefix that does without a ";"
    name.resize(n);
    const Entity* e = find_entity(name);
    if (!e || !(e->flags & kBare)) continue;
    append_entity(out, *e);
    return n + 1;
  }
  return 0;
}

size_t append_strict(std::u32string& out, std::u32string_view text, size_t at) {
  const auto stop = [](char32_t c) { return !(is_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')); };
  std::string name = read_name(text, at, stop);
  const size_t after = at + 1 + name.size();
  if (name.empty() || name.size() > 24 || after >= text.size() || text[after] != ';') return 0;
  if (const Entity* e = find_entity(name)) {
    append_entity(out, *e);
    return name.size() + 2;
  }
  for (char& c : name) {
    if (c >= 'a' && c <= 'z') return 0;
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const Entity* e = find_entity(name);
  if (!e || !(e->flags & kInCapitals)) return 0;
  append_capital(out, e->first);
  if (e->second != 0) append_capital(out, e->second);
  return name.size() + 2;
}

template <class Named>
std::u32string unescape(std::u32string_view text, bool strict, Named append_name) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    size_t used = 0;
    if (text[i] == '&' && i + 1 < text.size()) {
      if (text[i + 1] == '#') {
        const auto n = read_numeric(text, i);
        // ftfy takes up to 24 digits, wants the ";" and leaves "&#59;", which would give one.
        if (n && (!strict || (n->closed && n->length <= 27 && n->value != ';'))) {
          if (n->value != 0) out += n->value;
          used = n->length;
        }
      } else {
        used = append_name(out, text, i);
      }
    }
    if (used == 0) out += text[i++];
    i += used;
  }
  return out;
}

}  // namespace

std::u32string html_unescape(std::u32string_view text) { return unescape(text, false, append_named); }
std::u32string html_unescape_strict(std::u32string_view text) { return unescape(text, true, append_strict); }

}  // namespace megaslide
