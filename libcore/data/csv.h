// Comma-separated values (RFC 4180), with the line each record starts at.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

struct CsvRecord {
  size_t line = 0;  // from 1
  std::vector<std::string> fields;
  std::string problem;  // "a quote is never closed"; the fields up to it are there
};

// Records separated by LF (CRLF is the caller's to unify), fields by `separator`; a quoted field may hold both, and ""
// stands for a quote. Blank lines are no records.
std::vector<CsvRecord> parse_csv(std::string_view text, char separator = ',');

// ',', ';' or tab, whichever the first line has most of outside of quotes; ',' where it has none.
char guess_separator(std::string_view text);

}  // namespace megaslide
