#include "base/unicode.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/utf8.h"

namespace megaslide {
namespace {

struct Decomposition {
  uint32_t composed, first, second;
};
struct CombiningRange {
  uint32_t first, last;
  uint8_t combining;
};
struct FoldRange {
  uint32_t first, last;
  uint8_t step;
  int32_t distance;
};
#include "base/unicode_tables.inc"

// Hangul syllables are arithmetic: L + V (+ T).
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28,
                   kSyllableCount = kLeadCount * kVowelCount * kTailCount;

uint8_t combining_class(char32_t c) {
  const auto* r = std::upper_bound(std::begin(kCombining), std::end(kCombining), c,
                                   [](char32_t v, const CombiningRange& x) { return v < x.first; });
  if (r == std::begin(kCombining)) return 0;
  --r;
  return c <= r->last ? r->combining : uint8_t{0};
}

void decompose(char32_t c, std::u32string& out) {
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const uint32_t i = c - kSyllables;
    out += static_cast<char32_t>(kLeads + i / (kVowelCount * kTailCount));
    out += static_cast<char32_t>(kVowels + i % (kVowelCount * kTailCount) / kTailCount);
    if (i % kTailCount != 0) out += static_cast<char32_t>(kTails + i % kTailCount);
    return;
  }
  const auto* d = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                                   [](const Decomposition& x, char32_t v) { return x.composed < v; });
  if (d == std::end(kDecompositions) || d->composed != c) {
    out += c;
    return;
  }
  decompose(d->first, out);
  if (d->second != 0) decompose(d->second, out);
}

struct Composition {
  char32_t first, second, composed;
};

// The pairs of kDecompositions that may be composed, by (first, second).
const std::vector<Composition>& compositions() {
  static const std::vector<Composition> kAll = [] {
    std::vector<Composition> all;
    for (const Decomposition& d : kDecompositions) {
      if (d.second != 0 &&
          !std::binary_search(std::begin(kCompositionExclusions), std::end(kCompositionExclusions), d.composed)) {
        all.push_back({d.first, d.second, d.composed});
      }
    }
    std::sort(all.begin(), all.end(), [](const Composition& a, const Composition& b) {
      return std::pair(a.first, a.second) < std::pair(b.first, b.second);
    });
    return all;
  }();
  return kAll;
}

// The character that a and b compose to, 0 for none.
char32_t compose(char32_t a, char32_t b) {
  if (a >= kLeads && a < kLeads + kLeadCount && b >= kVowels && b < kVowels + kVowelCount) {
    return kSyllables + ((a - kLeads) * kVowelCount + (b - kVowels)) * kTailCount;
  }
  if (a >= kSyllables && a < kSyllables + kSyllableCount && (a - kSyllables) % kTailCount == 0 && b > kTails &&
      b < kTails + kTailCount) {
    return a + (b - kTails);
  }
  const auto& all = compositions();
  const auto found = std::lower_bound(
      all.begin(), all.end(), std::pair(a, b),
      [](const Composition& x, const std::pair<char32_t, char32_t>& v) { return std::pair(x.first, x.second) < v; });
  return found != all.end() && found->first == a && found->second == b ? found->composed : 0;
}

}  // namespace

std::u32string to_nfc(const std::u32string& text) {
  std::u32string d;
  for (char32_t c : text) decompose(c, d);
  // Canonical order: marks between two starters sort stably by class.
  for (size_t i = 0; i < d.size();) {
    if (combining_class(d[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < d.size() && combining_class(d[end]) != 0) ++end;
    std::stable_sort(d.begin() + static_cast<std::ptrdiff_t>(i), d.begin() + static_cast<std::ptrdiff_t>(end),
                     [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
  // Each mark composes with the last starter unless one of the same or a higher class stands between.
  std::u32string out;
  size_t starter = std::u32string::npos;
  uint8_t last = 0;
  for (char32_t c : d) {
    const uint8_t k = combining_class(c);
    if (starter != std::u32string::npos) {
      const bool adjacent = starter + 1 == out.size();
      const char32_t composed = adjacent || (last != 0 && last < k) ? compose(out[starter], c) : 0;
      if (composed != 0) {
        out[starter] = composed;
        continue;
      }
    }
    if (k == 0) starter = out.size();
    last = k;
    out += c;
  }
  return out;
}

std::string to_nfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return std::string(text);
  std::string out;
  for (char32_t c : to_nfc(decode_utf8(text))) append_utf8(out, c);
  return out;
}

std::u32string fold_case(std::u32string text) {
  for (char32_t& c : text) {
    const auto* r = std::upper_bound(std::begin(kFolds), std::end(kFolds), c,
                                     [](char32_t v, const FoldRange& x) { return v < x.first; });
    if (r == std::begin(kFolds)) continue;
    --r;
    if (c <= r->last && (c - r->first) % r->step == 0) c = static_cast<char32_t>(static_cast<int64_t>(c) + r->distance);
  }
  return text;
}

std::string fold_case(std::string_view text) {
  std::string out;
  for (char32_t c : fold_case(decode_utf8(text))) append_utf8(out, c);
  return out;
}

}  // namespace megaslide
