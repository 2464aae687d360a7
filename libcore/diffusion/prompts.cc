#include "diffusion/prompts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "base/unicode.h"

namespace megaslide {
namespace {

constexpr size_t kMaxStem = 200;  // leaves room for the repeat, an extension and a temporary's suffix in 255 bytes

// Length of the well-formed sequence at the start of `s`, 0 where there is none (overlong, surrogate, past U+10FFFF).
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || s.size() < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F))
    return 0;
  return n;
}

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r\v\f";
  const auto first = s.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

std::string safe_name(std::string_view prompt) {
  std::string name;
  for (const char c : prompt) {
    const auto u = static_cast<unsigned char>(c);
    name += u < 0x20 || u == 0x7F || c == '/' ? '_' : c;
  }
  if (name.size() > kMaxStem) {
    size_t end = kMaxStem;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
    name.resize(end);
  }
  if (name.starts_with('.') || name.starts_with('-')) name[0] = '_';
  return name;
}

// Names with equal keys are one file on a file system that ignores case or normalisation.
std::string collision_key(std::string_view name) { return to_nfc(fold_case(to_nfc(name))); }

}  // namespace

bool is_clean_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (n == 0 || text[0] == '\0') return false;
    text.remove_prefix(n);
  }
  return true;
}

std::vector<std::string> parse_prompts(std::string_view text, const std::string& origin) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    throw usage_error(fmt::format("{}: UTF-16 text", origin), fmt::format("save it as UTF-8: iconv -f UTF-16 -t UTF-8 {}", origin));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::vector<std::string> prompts;
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view prompt = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (prompt.empty() || prompt.starts_with('#')) continue;
    if (!is_clean_utf8(prompt)) throw usage_error(fmt::format("{}:{}: not UTF-8 text", origin, line), "one prompt a line, as UTF-8");
    prompts.emplace_back(prompt);
  }
  if (prompts.empty()) throw usage_error(fmt::format("{}: no prompt in it", origin), "one prompt a line; lines that start with # are comments");
  return prompts;
}

std::vector<NamedPrompt> name_prompts(const std::vector<std::string>& prompts) {
  std::map<std::string, int64_t> repeats;
  std::map<std::string, std::set<std::string>> owners;  // collision key: distinct prompts
  for (const auto& p : prompts) owners[collision_key(safe_name(p))].insert(p);
  std::vector<NamedPrompt> named;
  for (const auto& p : prompts) {
    std::string stem = safe_name(p);
    if (stem != p || owners[collision_key(stem)].size() > 1) stem += fmt::format("~{:.8}", sha256_hex(p));
    const int64_t repeat = repeats[p]++;
    named.push_back({p, repeat, fmt::format("{}-{}", stem, repeat)});
  }
  return named;
}

}  // namespace megaslide
