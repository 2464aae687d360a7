#include "base/utf8.h"

#include <gtest/gtest.h>

namespace megaslide {
namespace {

TEST(Utf8, WhatIsNone) {
  EXPECT_EQ(find_invalid_utf8("aé€𝄞"), std::string_view("aé€𝄞").size());
  // Overlong, a surrogate, above U+10FFFF, a stray tail, cut short.
  for (const char* bad : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xe2\x82", "\xf5\x80\x80\x80"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("ab") + bad), 2u) << testing::PrintToString(bad);
    EXPECT_EQ(code_point_at(bad, 0).bytes, 0u);
  }
}

TEST(Utf8, DecodesWhatItEncodes) {
  std::string text;
  std::u32string codes;
  for (const char32_t c : {U'\0', U'\x7f', U'\x80', U'\x7ff', U'\x800', U'\xd7ff', U'\xe000', U'\xffff', U'\x10000', U'\x10ffff'}) append_utf8(text, c), codes += c;
  EXPECT_EQ(decode_utf8(text), codes);
  std::string replaced;
  append_utf8(replaced, 0xd800);
  append_utf8(replaced, 0x110000);
  EXPECT_EQ(decode_utf8(replaced), U"\xfffd\xfffd");
  EXPECT_EQ(decode_utf8("a\xe2\x82z"), U"a\xfffd\xfffdz");
}

TEST(Utf8, APrintedNameDrivesNoTerminal) {
  EXPECT_EQ(printable("é 1.mp4"), "é 1.mp4");
  EXPECT_EQ(printable("a\x1b[31m\xc2\x9b\r\n\xe2\x80\xae.mp4\xff"), "a\\u001b[31m\\u009b\\u000d\\u000a\\u202e.mp4\\xff");
  EXPECT_EQ(printable_lines("one\n\ttwo\x1b[A"), "one\n\ttwo\\u001b[A");
}

TEST(Utf8, Quotes) {
  EXPECT_EQ(quote_for_message("blocks.0"), "\"blocks.0\"");
  EXPECT_EQ(quote_for_message(std::string_view("a\0b\x1b[31m", 8)), "\"a\\u0000b\\u001b[31m\"");
  EXPECT_EQ(quote_for_message("\xff"), "\"\\xff\"");
  EXPECT_EQ(quote_for_message("é"), "\"é\"");
  EXPECT_EQ(quote_for_message("\u202e"), "\"\\u202e\"");
  EXPECT_LT(quote_for_message(std::string(5000, 'x')).size(), 120u);
  EXPECT_EQ(quote_unless_plain("train.steps"), "train.steps");
  EXPECT_EQ(quote_unless_plain("caf\xe9"), "\"caf\\xe9\"");
}

}  // namespace
}  // namespace megaslide
