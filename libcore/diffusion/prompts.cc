#include "diffusion/prompts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "base/unicode.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr size_t kMaxStem = 200;  // leaves room for the repeat, an extension and a temporary's suffix in 255 bytes
constexpr size_t kDigits = 8;     // of its hash that a prompt's name ends with where it must

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r\v\f";
  const auto first = s.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

std::string safe_name(std::string_view prompt, size_t most = kMaxStem) {
  std::string name;
  for (const char c : prompt) {
    const auto u = static_cast<unsigned char>(c);
    name += u < 0x20 || u == 0x7F || c == '/' ? '_' : c;
  }
  if (name.size() > most) {
    size_t end = most;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
    name.resize(end);
  }
  if (name.starts_with('.') || name.starts_with('-')) name[0] = '_';
  return name;
}

// Names with equal keys are one file on a file system that ignores case or normalisation.
std::string collision_key(std::string_view name) { return to_nfc(fold_case(to_nfc(name))); }

}  // namespace

bool is_clean_utf8(std::string_view text) { return text.find('\0') == std::string_view::npos && find_invalid_utf8(text) == text.size(); }

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
  // Digits of its hash that a prompt's name ends with. Names that are one file get more, those with the fewest first: a prompt
  // may be just what the name of another looks like.
  std::map<std::string, size_t> digits;
  for (const auto& p : prompts) digits.emplace(p, safe_name(p) == p ? 0 : kDigits);
  const auto stem_of = [&](const std::string& p) {
    if (digits.at(p) == 0) return p;
    const std::string hash = sha256_hex(p).substr(0, digits.at(p));
    return fmt::format("{}~{}", safe_name(p, kMaxStem + kDigits - hash.size()), hash);
  };
  for (bool again = true; again;) {
    again = false;
    std::map<std::string, std::vector<std::string>> owners;  // collision key: distinct prompts
    for (const auto& [p, n] : digits) owners[collision_key(stem_of(p))].push_back(p);
    for (const auto& [key, same] : owners) {
      if (same.size() == 1) continue;
      again = true;
      size_t fewest = digits.at(same[0]);
      for (const auto& p : same) fewest = std::min(fewest, digits.at(p));
      for (const auto& p : same)
        if (digits.at(p) == fewest) digits[p] = fewest == 0 ? kDigits : 2 * fewest;
    }
  }
  std::map<std::string, int64_t> repeats;
  std::vector<NamedPrompt> named;
  for (const auto& p : prompts) {
    const int64_t repeat = repeats[p]++;
    named.push_back({p, repeat, fmt::format("{}-{}", stem_of(p), repeat)});
  }
  return named;
}

}  // namespace megaslide
