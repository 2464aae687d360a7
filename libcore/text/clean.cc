#include "text/clean.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/log.h"
#include "base/unicode.h"
#include "base/utf8.h"
#include "text/html.h"
#include "text/windows1252.h"

namespace megaslide {
namespace {

#include "text/width_forms.inc"

struct Ligature {
  char32_t code;
  char16_t parts[4];
};
constexpr Ligature kLigatures[] = {
    {0x132, u"IJ"}, {0x133, u"ij"}, {0x149, u"\u02bcn"}, {0x1C4, u"D\u017d"}, {0x1C5, u"D\u017e"}, {0x1C6, u"d\u017e"},
    {0x1C7, u"LJ"}, {0x1C8, u"Lj"}, {0x1C9, u"lj"}, {0x1CA, u"NJ"}, {0x1CB, u"Nj"}, {0x1CC, u"nj"},
    {0x1F1, u"DZ"}, {0x1F2, u"Dz"}, {0x1F3, u"dz"}, {0xFB00, u"ff"}, {0xFB01, u"fi"}, {0xFB02, u"fl"},
    {0xFB03, u"ffi"}, {0xFB04, u"ffl"}, {0xFB05, u"\u017ft"}, {0xFB06, u"st"}};

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_dropped_control(char32_t c) {
  return c <= 0x08 || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || (c >= 0x206A && c <= 0x206F) || c == 0xFEFF ||
         (c >= 0xFFF9 && c <= 0xFFFC);
}

// C1 controls, ligatures, width forms and quotes: one character to one or several.
void append_plain(std::u32string& out, char32_t c) {
  c = from_windows1252(c);
  if (c == 0x3000) c = ' ';
  if (c >= 0xFF01 && c <= 0xFF5E) c -= 0xFEE0;
  if (c >= 0xFF5F && c <= 0xFFEF) {
    const bool macron = c == 0xFFE3;  // the one form with two characters
    c = kWidthForms[c - 0xFF5F];
    if (macron) {
      out += c;
      c = 0x304;
    }
  }
  const auto* l = std::lower_bound(std::begin(kLigatures), std::end(kLigatures), c,
                                   [](const Ligature& x, char32_t v) { return x.code < v; });
  if (l != std::end(kLigatures) && l->code == c) {
    for (const char16_t* p = l->parts; *p != 0; ++p) append_plain(out, *p);
    return;
  }
  if (c == 0x2BC || (c >= 0x2018 && c <= 0x201B)) c = '\'';
  if (c >= 0x201C && c <= 0x201F) c = '"';
  out += c;
}

std::u32string unify_line_breaks(const std::u32string& text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += c == '\r' || c == 0x2028 || c == 0x2029 || c == 0x85 ? U'\n' : c;
  }
  return out;
}

// Without terminal escapes ("ESC [ 31 m"), then without control characters.
std::u32string drop_controls(const std::u32string& text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 0x1B && i + 1 < text.size() && text[i + 1] == '[') {
      size_t j = i + 2;
      while (j < text.size() && ((text[j] >= '0' && text[j] <= '9') || text[j] == ';')) ++j;
      if (j < text.size() && ((text[j] >= 'A' && text[j] <= 'Z') || (text[j] >= 'a' && text[j] <= 'z'))) {
        i = j;
        continue;
      }
      // No escape: everything up to j is ordinary, and need not be looked at again.
      out.append(text, i + 1, j - i - 1);
      i = j - 1;
      continue;
    }
    if (!is_dropped_control(text[i])) out += text[i];
  }
  return out;
}

// Rounds of a line until it stays: each undoes one level of "&amp;amp;…", so that there are as many as levels. Text that
// is escaped more often than this is no caption.
constexpr int kMaxRounds = 32;

std::u32string fix_line(std::u32string line, bool unescape) {
  for (int round = 0; round < kMaxRounds; ++round) {
    std::u32string next;
    next.reserve(line.size());
    const std::u32string source = unescape ? html_unescape_strict(line) : line;
    for (const char32_t c : source) append_plain(next, c);
    next = to_nfc(drop_controls(unify_line_breaks(next)));
    if (next == line) break;
    line = std::move(next);
  }
  return line;
}

constexpr size_t kLongestLine = 1'000'000;  // characters that are treated at a time, as ftfy does

std::u32string fix_lines(const std::u32string& text) {
  std::u32string out;
  out.reserve(text.size());
  bool unescape = true;
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find(U'\n', at);
    const size_t end = std::min(newline == std::u32string::npos ? text.size() : newline + 1, at + kLongestLine);
    std::u32string line = text.substr(at, end - at);
    unescape = unescape && line.find(U'<') == std::u32string::npos;
    out += fix_line(std::move(line), unescape);
    at = end;
  }
  return out;
}

// The byte that Windows-1252 would have read as this character; -1 for none. Undefined bytes are read as C1 controls.
int windows1252_byte(char32_t c) {
  if (c >= 0x80 && c < 0xA0) return static_cast<int>(c);
  if (c >= 0xA0 && c <= 0xFF) return static_cast<int>(c);
  for (int i = 0; i < 32; ++i)
    if (kWindows1252[i] == c && c != 0) return 0x80 + i;
  return -1;
}

// What ordinary text has after a letter: quotes, dashes, an ellipsis, a no-break space.
bool is_punctuation_byte(int b) {
  return b == 0x85 || (b >= 0x91 && b <= 0x97) || b == 0xA0 || b == 0xA1 || b == 0xAB || b == 0xBB || b == 0xBF;
}

// Characters at `at` that are one UTF-8 sequence read as Windows-1252: 0, or 2 to 4. "Å”" and "é”…" are the end of a
// quotation, whatever they would be in UTF-8; "Ã" and "Â" before punctuation hardly occur.
size_t mojibake_length(const std::u32string& text, size_t at) {
  const int lead = windows1252_byte(text[at]);
  const bool latin1 = lead == 0xC2 || lead == 0xC3, two = latin1 || lead == 0xC4 || lead == 0xC5 || lead == 0xD0 || lead == 0xD1;
  const size_t n = two ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
  if (n == 0 || at + n > text.size()) return 0;
  bool unusual = latin1;
  for (size_t i = 1; i < n; ++i) {
    const int b = windows1252_byte(text[at + i]);
    if (b < 0x80 || b > 0xBF) return 0;
    unusual = unusual || !is_punctuation_byte(b);
  }
  return unusual ? n : 0;
}

}  // namespace

std::string find_mojibake(std::string_view text) {
  const std::u32string codes = decode_utf8(text);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] < 0x80) continue;
    const size_t n = mojibake_length(codes, i);
    if (n == 0) continue;
    std::string found;
    for (size_t k = 0; k < n; ++k) append_utf8(found, codes[i + k]);
    return found;
  }
  return {};
}

std::string clean_prompt(std::string_view text) {
  if (const std::string found = find_mojibake(text); !found.empty())
    log_warning("prompt {}: {} looks like UTF-8 that was read as Windows-1252; it is used as it stands", quote_for_message(text),
                quote_for_message(found));
  const std::u32string fixed = html_unescape(html_unescape(fix_lines(decode_utf8(text))));
  std::string out;
  bool blank = false;
  for (const char32_t c : fixed) {
    if (is_python_space(c)) {
      blank = true;
      continue;
    }
    if (blank && !out.empty()) out += ' ';
    blank = false;
    append_utf8(out, c);
  }
  return out;
}

}  // namespace megaslide
