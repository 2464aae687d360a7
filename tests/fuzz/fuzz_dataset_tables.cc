// Clips with captions in a table: the same text as CSV, JSON and JSON Lines.
#include "base/utf8.h"
#include "data/dataset_parts.h"
#include "data/caption.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

namespace {

void check_rows(const std::vector<TableRow>& rows, size_t bytes) {
  MS_CHECK(rows.size() <= bytes);
  for (const TableRow& r : rows) {
    MS_CHECK(!r.place.empty());
    fuzz::require_printable(r.problem);
    for (const std::string& c : r.captions) MS_CHECK(find_invalid_utf8(c) == c.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = decode_text(fuzz::text_of(data, size)).text;
  fuzz::accepts([&] { check_rows(parse_csv_rows(text, "x.csv"), size); });
  fuzz::accepts([&] { check_rows(parse_json_rows(text, "x.json"), size); });
  fuzz::accepts([&] { check_rows(parse_jsonl_rows(text, "x.jsonl"), size); });
  fuzz::accepts([&] { check_rows(pair_lines(text, text, "prompts.txt", "videos.txt"), size); });
  return 0;
}
