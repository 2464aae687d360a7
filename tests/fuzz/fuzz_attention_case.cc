// The parameters of a stored attention case.
#include "attention_check/stored_case.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  StoredCase c;
  if (!fuzz::accepts([&] { c = parse_stored_case(fuzz::text_of(data, size), "case.json"); })) return 0;
  MS_CHECK(c.tokens() >= 1 && c.batch * c.tokens() * c.heads * c.head_dim >= 1);
  const bool slots = c.kind == CaseKind::kDsa || c.kind == CaseKind::kMotion;
  MS_CHECK(!slots || (dsa_offset_count(c.dsa_shape()) >= 1 && c.batch * c.tokens() * dsa_offset_count(c.dsa_shape()) > 0));
  MS_CHECK(c.kind != CaseKind::kPooled || c.pooled_shape().tiles() >= 1);
  MS_CHECK(c.t_lo.size() == c.t_hi.size() && (c.t_lo.empty() || static_cast<int64_t>(c.t_lo.size()) == c.grid[0]));
  return 0;
}
