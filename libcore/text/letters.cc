#include "text/letters.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace megaslide {
namespace {

struct Range {
  uint32_t first, last;
};
struct LowerRange {
  uint32_t first, last;
  uint8_t step;
  int32_t distance;
};
#include "text/letter_tables.inc"

// The range of an ascending table that holds c; nullptr for none.
template <class R, size_t N>
const R* find_range(const R (&table)[N], char32_t c) {
  const auto* r = std::upper_bound(std::begin(table), std::end(table), c, [](char32_t v, const R& x) { return v < x.first; });
  return r == std::begin(table) || c > (r - 1)->last ? nullptr : r - 1;
}

bool ignores_case(char32_t c) { return find_range(kCaseIgnorable, c) != nullptr; }
bool is_cased(char32_t c) { return find_range(kCased, c) != nullptr; }

// Condition Final_Sigma: a cased letter before and none after, seen through characters that ignore case. Runs of those
// end at the next sigma, so that a text's sigmas together look at each character twice at most.
bool is_final_sigma(const std::u32string& text, size_t at) {
  size_t before = at;
  while (before > 0 && ignores_case(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && ignores_case(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

constexpr char32_t kCapitalSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;

}  // namespace

bool is_letter(char32_t c) { return find_range(kLetters, c) != nullptr; }
bool is_number(char32_t c) { return find_range(kNumbers, c) != nullptr; }

std::u32string to_lower(const std::u32string& text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c == kCapitalSigma) {
      out += is_final_sigma(text, i) ? kFinalSigma : kSmallSigma;
    } else if (c == 0x130) {  // capital I with a dot: i, combining dot above
      out += U"i\u0307";
    } else {
      const LowerRange* r = find_range(kLower, c);
      out += r != nullptr && (c - r->first) % r->step == 0 ? static_cast<char32_t>(static_cast<int64_t>(c) + r->distance) : c;
    }
  }
  return out;
}

}  // namespace megaslide
