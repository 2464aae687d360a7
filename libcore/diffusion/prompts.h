// Prompts as people give them, and names of the videos made from them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

// One prompt a line of UTF-8 text. A byte order mark, carriage returns, surrounding white space, empty lines and lines
// that start with '#' are dropped; a repeated prompt stays. Throws a usage Error ("ORIGIN:line: ...") for text that is
// not UTF-8, and where no prompt is left.
std::vector<std::string> parse_prompts(std::string_view text, const std::string& origin);

// True for well-formed UTF-8 without NUL.
bool is_clean_utf8(std::string_view text);

struct NamedPrompt {
  std::string prompt;
  int64_t repeat = 0;  // 0 for the first of equal prompts, 1 for the second, …
  std::string stem;    // file name without extension: "PROMPT-REPEAT", the form that VBench reads
};

// Stems are at most 200 bytes, free of '/', control characters and leading '.' or '-', and differ from each other even
// where a file system ignores case or Unicode normalisation: what had to be changed, and what would collide, carries a
// hash of its prompt.
std::vector<NamedPrompt> name_prompts(const std::vector<std::string>& prompts);

}  // namespace megaslide
