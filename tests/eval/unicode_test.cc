#include "base/unicode.h"
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace megaslide {
namespace {

TEST(Unicode, ComposesAndReorders) {
  EXPECT_EQ(to_nfc("fac\xCC\xA7"
                   "ades"),
            "fa\xC3\xA7"
            "ades");                                               // c + cedilla
  EXPECT_EQ(to_nfc("a\xCC\x81\xCC\xA3"), "\xE1\xBA\xA1\xCC\x81");  // a + acute + dot below: the dot composes first
  EXPECT_EQ(to_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");  // Hangul jamo
  EXPECT_EQ(to_nfc("\xE2\x84\xAB"), "\xC3\x85");                              // the angstrom sign
  EXPECT_EQ(to_nfc("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");              // excluded from composition
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc(""), "");
}

TEST(Unicode, DamagedBytesBecomeReplacementCharacters) {
  EXPECT_EQ(to_nfc("a\xFF"
                   "b\xC3"),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
  EXPECT_EQ(to_nfc("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  EXPECT_EQ(decode_utf8("\xF4\x90\x80\x80").size(), 4u);                      // above U+10FFFF
}

TEST(Unicode, FoldsCaseBeyondAscii) {
  EXPECT_EQ(fold_case("A FA\xC3\x87"
                      "ADE"),
            fold_case("a fa\xC3\xA7"
                      "ade"));
  EXPECT_EQ(fold_case("\xCE\xA3\xCE\x9F\xCE\xA3"), fold_case("\xCF\x83\xCE\xBF\xCF\x82"));  // final sigma too
  EXPECT_NE(fold_case("a"), fold_case("b"));
}

}  // namespace
}  // namespace megaslide
