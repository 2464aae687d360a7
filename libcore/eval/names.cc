#include "eval/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/unicode.h"
#include "base/utf8.h"
#include "data/caption.h"
#include "io/json.h"

namespace megaslide {
namespace {

using Json = nlohmann::json;

std::string expected_name(const std::string& prompt, int64_t index) { return fmt::format("{}-{}", prompt, index); }

std::string file_name(const std::string& path) {
  const std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  return (p.has_filename() ? p.filename() : p.parent_path().filename()).string();
}

// Letters and digits alone, in lower case: "Ends with a dot.-1" and "ends_with_a_dot-1" become equal.
std::string bare(const std::string& name) {
  std::string out;
  for (char32_t c : fold_case(decode_utf8(name))) {
    if (c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) append_utf8(out, c);
  }
  return out;
}

// A cheap lower bound for the edit distance: half the difference of the letter counts, rounded up.
using Histogram = std::array<int32_t, 32>;
Histogram histogram(const std::u32string& s) {
  Histogram h{};
  for (char32_t c : s) ++h[c % 32];
  return h;
}
int64_t histogram_bound(const Histogram& a, const Histogram& b) {
  int64_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return (sum + 1) / 2;
}

struct Candidate {
  size_t item;
  std::u32string prompt;
  Histogram letters;
};

// For each missing name the unmatched file that is most like it: equal in letters and digits, else of the same index
// and at most an eighth of the prompt away.
void find_near(NameAudit& audit, const std::vector<std::pair<std::string, int64_t>>& missing,
               const std::vector<VideoItem>& items, std::set<size_t>& unmatched) {
  std::multimap<std::string, size_t> by_letters;
  std::map<int64_t, std::vector<Candidate>> by_index;
  for (size_t i : unmatched) {
    by_letters.emplace(bare(items[i].name), i);
    const std::u32string prompt = decode_utf8(items[i].prompt);
    if (items[i].index) by_index[*items[i].index].push_back({i, prompt, histogram(prompt)});
  }
  for (const auto& [prompt, index] : missing) {
    const std::string name = expected_name(prompt, index);
    size_t best = items.size();
    const auto [from, to] = by_letters.equal_range(bare(name));
    for (auto it = from; it != to && best == items.size(); ++it) {
      if (unmatched.count(it->second) != 0) best = it->second;
    }
    if (best == items.size()) {
      const std::u32string wanted = decode_utf8(prompt);
      const Histogram letters = histogram(wanted);
      int64_t limit = std::max<int64_t>(2, static_cast<int64_t>(wanted.size()) / 8);
      for (const Candidate& c : by_index[index]) {
        if (unmatched.count(c.item) == 0 || histogram_bound(letters, c.letters) > limit) continue;
        const int64_t distance = bounded_distance(wanted, c.prompt, limit);
        if (distance <= limit) best = c.item, limit = distance - 1;
      }
    }
    if (best == items.size()) continue;
    audit.near[name] = file_name(items[best].path);
    unmatched.erase(best);
  }
}

// VBench's auxiliary_info: {"appearance_style": {"appearance_style": "Van Gogh style"}}, or the phrase itself there or in its place.
std::string style_of(const Json& entry) {
  constexpr const char* kKey = "appearance_style";
  const Json* at = &entry;
  if (at->is_object() && at->contains("auxiliary_info")) at = &at->at("auxiliary_info");
  for (int depth = 0; depth < 2 && at->is_object() && at->contains(kKey); ++depth) at = &at->at(kKey);
  return at->is_string() && at != &entry ? at->get<std::string>() : std::string();
}

PromptEntry prompt_of(const Json& v, const std::string& where) {
  PromptEntry e;
  if (v.is_string()) {
    e.prompt = v.get<std::string>();
  } else if (v.is_object()) {
    for (const char* key : {"prompt_en", "prompt", "caption", "text"}) {
      if (const auto p = v.find(key); e.prompt.empty() && p != v.end() && p->is_string())
        e.prompt = p->get<std::string>();
    }
    if (const auto d = v.find("dimension"); d != v.end()) {
      for (const Json& name : d->is_array() ? *d : Json::array({*d})) {
        if (!name.is_string()) throw Error(fmt::format("{}: dimension: expected names", where));
        e.dimensions.push_back(name.get<std::string>());
      }
    }
  }
  e.style = style_of(v);
  if (e.prompt.empty()) throw Error(fmt::format("{}: expected a prompt or an object with \"prompt_en\"", where));
  return e;
}

}  // namespace

int64_t bounded_distance(const std::u32string& a, const std::u32string& b, int64_t limit) {
  const int64_t n = static_cast<int64_t>(a.size()), m = static_cast<int64_t>(b.size());
  if (std::abs(n - m) > limit) return limit + 1;
  // Row i of the table, only columns within `limit` of the diagonal.
  std::vector<int64_t> row(static_cast<size_t>(m + 1), limit + 1), next(row);
  for (int64_t j = 0; j <= std::min(m, limit); ++j) row[j] = j;
  for (int64_t i = 1; i <= n; ++i) {
    const int64_t from = std::max<int64_t>(1, i - limit), to = std::min(m, i + limit);
    std::fill(next.begin(), next.end(), limit + 1);
    if (i <= limit) next[0] = i;
    int64_t least = next[0];
    for (int64_t j = from; j <= to; ++j) {
      next[j] = std::min({row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), row[j] + 1, next[j - 1] + 1, limit + 1});
      least = std::min(least, next[j]);
    }
    if (least > limit) return limit + 1;
    std::swap(row, next);
  }
  return row[m];
}

std::vector<PromptEntry> read_prompts(const std::string& path) { return parse_prompt_entries(read_file(path), path); }

std::vector<PromptEntry> parse_prompt_entries(const std::string& text, const std::string& path) {
  std::vector<PromptEntry> entries;
  if (path.size() >= 5 && fold_case(path.substr(path.size() - 5)) == ".json") {
    const Json doc = parse_json(text, path);
    if (!doc.is_array()) throw Error(fmt::format("{}: expected a list of prompts", path));
    for (size_t i = 0; i < doc.size(); ++i) entries.push_back(prompt_of(doc[i], fmt::format("{}: entry {}", path, i)));
  } else {
    std::string line;
    for (char c : decode_text(text).text + "\n") {
      if (c != '\n') {
        line += c;
      } else if (line = trim(line); !line.empty()) {
        entries.push_back({std::move(line), {}});
        line.clear();
      }
    }
  }
  if (entries.empty()) throw Error(fmt::format("{}: holds no prompt", path));
  std::vector<PromptEntry> unique;
  std::map<std::string, size_t> seen;
  for (PromptEntry& e : entries) {
    e.prompt = to_nfc(e.prompt);
    const auto [found, fresh] = seen.emplace(e.prompt, unique.size());
    if (fresh) {
      unique.push_back(std::move(e));
      continue;
    }
    if (unique[found->second].style.empty()) unique[found->second].style = e.style;
    std::vector<std::string>& known = unique[found->second].dimensions;
    for (std::string& d : e.dimensions) {
      if (std::find(known.begin(), known.end(), d) == known.end()) known.push_back(std::move(d));
    }
  }
  return unique;
}

NameAudit audit_names(std::vector<VideoItem>& items, const std::vector<PromptEntry>& prompts, int64_t videos_a_prompt) {
  NameAudit audit;
  // Where several files carry one name, the first of the input's order is taken.
  std::map<std::pair<std::string, int64_t>, std::vector<size_t>> by_name;
  std::set<size_t> unmatched;
  for (size_t i = 0; i < items.size(); ++i) {
    unmatched.insert(i);
    if (items[i].index) by_name[{items[i].prompt, *items[i].index}].push_back(i);
  }
  std::vector<VideoItem> kept;
  std::vector<std::pair<std::string, int64_t>> missing;
  for (const PromptEntry& p : prompts) {
    for (int64_t index = 0; index < videos_a_prompt; ++index) {
      ++audit.expected;
      const auto found = by_name.find({p.prompt, index});
      if (found == by_name.end()) {
        missing.emplace_back(p.prompt, index);
        audit.missing.push_back(expected_name(p.prompt, index));
        continue;
      }
      ++audit.matched;
      kept.push_back(items[found->second[0]]);
      kept.back().dimensions = p.dimensions;
      if (!p.style.empty()) kept.back().style = p.style;
      for (size_t i : found->second) unmatched.erase(i);
      for (size_t k = 1; k < found->second.size(); ++k)
        audit.duplicates.push_back(file_name(items[found->second[k]].path));
    }
  }
  find_near(audit, missing, items, unmatched);
  for (size_t i : unmatched) audit.extra.push_back(file_name(items[i].path));
  std::map<std::string, std::string> folded;
  for (const PromptEntry& p : prompts) {
    const auto [found, fresh] = folded.emplace(fold_case(p.prompt), p.prompt);
    if (!fresh) audit.differ_in_case.emplace_back(found->second, p.prompt);
  }
  items = std::move(kept);
  return audit;
}

}  // namespace megaslide
