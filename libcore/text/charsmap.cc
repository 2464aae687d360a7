// A normaliser's precompiled rules: the bytes of a double-array trie (u32), its units (u32 each, darts-clone's layout),
// then the NUL-terminated replacements that its values point into.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/spiece_model.h"

namespace megaslide {
namespace {

constexpr size_t kMaxReplacement = 256;  // bytes: the longest of NFKC has 33
constexpr int kMaxMatches = 32;          // nested rules on one path: what the library has room for

uint32_t load_u32(const char* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

class Trie {
 public:
  Trie(std::string_view units, std::string_view replacements)
      : units_(units), replacements_(replacements), size_(units.size() / 4), state_(size_, kNew) {}

  // Walks all that can be reached, each unit once. Shared subtrees are fine, cycles are not: a match would have no end.
  std::string check() {
    std::vector<uint32_t> path{0};
    while (!path.empty() && problem_.empty()) {
      const uint32_t at = path.back();
      if (state_[at] >= 0 || state_[at] == kOpen) {
        if (state_[at] == kOpen) close(at);
        path.pop_back();
        continue;
      }
      state_[at] = kOpen;
      open(at, path);
    }
    if (problem_.empty() && state_[0] > kMaxMatches)
      return fmt::format("{} rules of its normaliser begin alike, one longer than the other; at most {} may", int{state_[0]}, kMaxMatches);
    return problem_;
  }

 private:
  static constexpr int16_t kNew = -2, kOpen = -1;  // else the most rules on a path from here on

  uint32_t unit(uint32_t at) const { return load_u32(units_.data() + size_t{at} * 4); }
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }
  static uint32_t label(uint32_t unit) { return unit & 0x800000ff; }
  static bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }

  template <class F>
  void for_children(uint32_t at, F f) const {
    const uint32_t base = at ^ offset(unit(at));
    for (uint32_t c = 0; c < 256; ++c)
      if (label(unit(base ^ c)) == c) f(base ^ c);
  }

  void open(uint32_t at, std::vector<uint32_t>& path) {
    const uint32_t u = unit(at), base = at ^ offset(u);
    if ((base | 0xff) >= size_) {
      problem_ = fmt::format("unit {} of its normaliser's trie points beyond the trie's {} units", at, size_);
      return;
    }
    if (has_leaf(u)) check_replacement(unit(base) & 0x7fffffff);
    for_children(at, [&](uint32_t child) {
      if (state_[child] == kOpen) problem_ = fmt::format("unit {} of its normaliser's trie leads back to unit {}", at, child);
      else if (state_[child] == kNew) path.push_back(child);
    });
  }

  void close(uint32_t at) {
    int deepest = 0;
    for_children(at, [&](uint32_t child) { deepest = std::max<int>(deepest, state_[child]); });
    state_[at] = static_cast<int16_t>(std::min(deepest + (has_leaf(unit(at)) ? 1 : 0), 1000));
  }

  void check_replacement(uint32_t value) {
    if (value >= replacements_.size()) {
      problem_ = fmt::format("a rule of its normaliser points to byte {} of {} bytes of replacements", value, replacements_.size());
      return;
    }
    const size_t end = replacements_.find('\0', value);
    if (end - value > kMaxReplacement) {
      problem_ = fmt::format("a replacement of its normaliser has {} bytes; at most {} are allowed", end - value, kMaxReplacement);
      return;
    }
    if (find_invalid_utf8(replacements_.substr(value, end - value)) != end - value)
      problem_ = fmt::format("the replacement at byte {} of its normaliser is not UTF-8", value);
  }

  std::string_view units_, replacements_;
  size_t size_;
  std::vector<int16_t> state_;
  std::string problem_;
};

}  // namespace

std::string check_charsmap(std::string_view map) {
  if (map.empty()) return {};
  if (map.size() < 4) return "its normaliser's rules are cut short";
  const uint32_t bytes = load_u32(map.data());
  if (bytes == 0 || bytes % 1024 != 0 || bytes >= map.size() - 4)
    return fmt::format("its normaliser's trie has {} bytes, of {} in all; it consists of blocks of 1024", bytes, map.size());
  const std::string_view replacements = map.substr(4 + bytes);
  if (replacements.back() != '\0') return "the last replacement of its normaliser does not end";
  return Trie(map.substr(4, bytes), replacements).check();
}

}  // namespace megaslide
