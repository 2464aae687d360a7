#include "data/csv.h"

#include <algorithm>

namespace megaslide {
namespace {

class Parser {
 public:
  Parser(std::string_view text, char separator) : text_(text), separator_(separator) {}

  std::vector<CsvRecord> run() {
    std::vector<CsvRecord> out;
    while (at_ < text_.size()) {
      CsvRecord r = record();
      const bool blank = r.fields.size() == 1 && r.problem.empty() && r.fields[0].find_first_not_of(" \t") == std::string::npos;
      if (!blank) out.push_back(std::move(r));
    }
    return out;
  }

 private:
  CsvRecord record() {
    CsvRecord r;
    r.line = line_;
    for (;;) {
      r.fields.emplace_back();
      if (at_ < text_.size() && text_[at_] == '"') quoted(r);
      else plain(r.fields.back());
      if (at_ >= text_.size()) return r;
      const char c = text_[at_++];
      if (c == '\n') {
        ++line_;
        return r;
      }
    }
  }

  void plain(std::string& field) {
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n') field += text_[at_++];
  }

  void quoted(CsvRecord& r) {
    std::string& field = r.fields.back();
    ++at_;
    for (;;) {
      if (at_ >= text_.size()) {
        r.problem = "a quote is never closed";
        return;
      }
      const char c = text_[at_++];
      if (c == '\n') ++line_;
      if (c != '"') {
        field += c;
      } else if (at_ < text_.size() && text_[at_] == '"') {
        field += '"';
        ++at_;
      } else {
        break;
      }
    }
    const size_t length = field.size();
    plain(field);  // after the closing quote only blanks are meant
    if (field.find_first_not_of(" \t", length) != std::string::npos) r.problem = "text after a closing quote";
    field.resize(length);
  }

  std::string_view text_;
  char separator_;
  size_t at_ = 0, line_ = 1;
};

}  // namespace

std::vector<CsvRecord> parse_csv(std::string_view text, char separator) { return Parser(text, separator).run(); }

char guess_separator(std::string_view text) {
  size_t counts[3] = {};
  static constexpr char kSeparators[3] = {',', ';', '\t'};
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '\n') break;
    for (size_t i = 0; i < 3; ++i) counts[i] += c == kSeparators[i];
  }
  return kSeparators[std::max_element(counts, counts + 3) - counts];
}

}  // namespace megaslide
