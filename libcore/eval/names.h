// Videos against the prompts they should exist for: VBench names them "{prompt}-{index}". A wrong name is the most
// common reason for wrong scores, so the audit comes before any of them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "eval/inputs.h"

namespace megaslide {

struct PromptEntry {
  std::string prompt;                   // NFC
  std::vector<std::string> dimensions;  // of the suite; empty: all
  std::string style = {};               // the phrase that appearance_style compares with, or empty
};

// A JSON list of {"prompt_en", "dimension"} as VBench_full_info.json is, a JSON list of strings, or a text with one
// prompt a line. Equal prompts become one entry with all their dimensions and the first style phrase.
std::vector<PromptEntry> read_prompts(const std::string& path);
// The same from its text; it is JSON where `path` ends in ".json".
std::vector<PromptEntry> parse_prompt_entries(const std::string& text, const std::string& path);

struct NameAudit {
  int64_t expected = 0, matched = 0;
  std::vector<std::string> missing;         // "{prompt}-{index}"
  std::vector<std::string> extra;           // file names that belong to no prompt and resemble none
  std::map<std::string, std::string> near;  // missing name -> file name that is probably meant
  std::vector<std::string> duplicates;      // further files for a name that is taken
  std::vector<std::pair<std::string, std::string>> differ_in_case;  // prompts that a file system may confuse
  bool complete() const { return missing.empty() && extra.empty() && duplicates.empty(); }
};

// Compares in NFC; extensions do not matter, and neither does the order of files. Keeps in `items` the matched ones, in
// the order of prompts and indices, and gives them their prompt's dimensions and style phrase.
NameAudit audit_names(std::vector<VideoItem>& items, const std::vector<PromptEntry>& prompts, int64_t videos_a_prompt);

// Edit distance (insert, delete, replace), or limit + 1 when it is more than `limit`.
int64_t bounded_distance(const std::u32string& a, const std::u32string& b, int64_t limit);

}  // namespace megaslide
