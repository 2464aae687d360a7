#include <gtest/gtest.h>

#include <chrono>

#include "base/utf8.h"
#include "text/clean.h"
#include "text/html.h"

namespace megaslide {
namespace {

std::string loose(std::string_view text) {
  std::string out;
  for (const char32_t c : html_unescape(decode_utf8(text))) append_utf8(out, c);
  return out;
}
std::string strict(std::string_view text) {
  std::string out;
  for (const char32_t c : html_unescape_strict(decode_utf8(text))) append_utf8(out, c);
  return out;
}

// Values of Python's html.unescape (3.11).
TEST(Html, LooseForm) {
  EXPECT_EQ(loose("&lt;b&gt; &amp; &quot;x&quot;"), "<b> & \"x\"");
  EXPECT_EQ(loose("a&ltb &ampc &copy2024"), "a<b &c ©2024");         // without ";"
  EXPECT_EQ(loose("&notit; &notin; &notinx"), "¬it; ∉ ¬inx");        // the longest prefix
  EXPECT_EQ(loose("&nosuch; &; & &a &#; &#x; &#xg;"), "&nosuch; &; & &a &#; &#x; &#xg;");
  EXPECT_EQ(loose("&#39;&#x27;&#X27&#39"), "''''");
  EXPECT_EQ(loose("&#0; &#xD800; &#x110000; &#99999999999999999999;"), "\ufffd \ufffd \ufffd \ufffd");
  EXPECT_EQ(loose("a&#1;b&#x7f;c&#xFFFE;d&#xFDD0;e"), "abcde");
  EXPECT_EQ(loose("&#128;&#x99;&#129;"), "€™\u0081");               // Windows-1252
  EXPECT_EQ(loose("&CounterClockwiseContourIntegral;"), "∳");       // the longest name, 31 letters
  EXPECT_EQ(loose("&NotEqualTilde;"), "≂\u0338");                   // two characters
  EXPECT_EQ(loose("&é &ampé"), "&é &é");
  EXPECT_EQ(loose("&"), "&");
  EXPECT_EQ(loose(""), "");
}

// Values of ftfy.fixes.unescape_html (6.3.1).
TEST(Html, StrictForm) {
  EXPECT_EQ(strict("&lt &amp; &copy &copy;"), "&lt & &copy ©");
  EXPECT_EQ(strict("P&EACUTE;REZ P&eacute;rez &nTILDE;"), "PÉREZ Pérez &nTILDE;");
  EXPECT_EQ(strict("&SZLIG; &FFILIG; &FJLIG; &MICRO;"), "SS FFI FJ Μ");
  EXPECT_EQ(strict("&GTDOT; &AMP;"), "&GTDOT; &");                  // "&GT" is a name by itself
  EXPECT_EQ(strict("&#59; &#39; &#39 &#12abc;"), "&#59; ' &#39 &#12abc;");
}

// Values of diffusers' prompt_clean with ftfy 6.3.1 where nothing needs its encoding repair.
TEST(Clean, FollowsFtfy) {
  EXPECT_EQ(clean_prompt("&amp;amp;amp;amp;lt;"), "<");             // until nothing changes
  EXPECT_EQ(clean_prompt("<b>\n&amp;amp;amp;amp;lt;"), "<b> &amp;amp;lt;");  // no more after a "<": two rounds are left
  EXPECT_EQ(clean_prompt("CAF&EACUTE;"), "CAFÉ");
  EXPECT_EQ(clean_prompt("ﬅ ﬆ ŉ Ǆ ￣ ｶﾞ ￥ ﾡ"), "ſt st 'n DŽ \u0304 ガ ¥ ᄀ");
  EXPECT_EQ(clean_prompt("a\x1b[1;31mb\x1b[c\x1b[12"), "ab[12");
  EXPECT_EQ(clean_prompt("\x1b[\x1b[31mx"), "[x");
  EXPECT_EQ(clean_prompt("a\r\nb\rc\u2028d\u2029e\u0085" "f"), "a b c d e…f");
  EXPECT_EQ(clean_prompt("e\u0301 \u1100\u1161"), "é 가");          // NFC
  EXPECT_EQ(clean_prompt("\u001c a\u00a0\u2003b\u3000\u205f"), "a b");
  EXPECT_EQ(clean_prompt("a\u200bb\u2060c\u180ed"), "a\u200bb\u2060c\u180ed");  // no white space to Python
  EXPECT_EQ(clean_prompt("„low“ ‚x‘ «y»"), "\"low\" 'x' «y»");
  EXPECT_EQ(clean_prompt("  "), "");
  EXPECT_EQ(clean_prompt(""), "");
}

TEST(Clean, InvalidUtf8BecomesReplacementCharacters) {
  EXPECT_EQ(clean_prompt("caf\xe9 \xff\xfe ok \xed\xa0\x80"), "caf\ufffd \ufffd\ufffd ok \ufffd\ufffd\ufffd");
}

TEST(Clean, MojibakeIsFoundAndOrdinaryTextIsNot) {
  EXPECT_EQ(find_mojibake("cafÃ© au lait"), "Ã©");
  EXPECT_EQ(find_mojibake("itâ€™s"), "â€™");
  EXPECT_EQ(find_mojibake("ä½\u00a0å¥½"), "ä½\u00a0");
  EXPECT_EQ(find_mojibake("ðŸ¦Š"), "ðŸ¦Š");
  EXPECT_EQ(find_mojibake("\u00c3\u0089cole"), "\u00c3\u0089");     // read as Latin-1
  for (const char* fine : {"café à la crème", "“SÅ”", "«É»", "“café”…", "naïve – Ångström", "NÃO, São", "園丁", "Привет", "½ £ §"})
    EXPECT_EQ(find_mojibake(fine), "") << fine;
}

// 100,000 characters of the worst kinds: linear, hence well under a second (the bound leaves room for a busy machine).
TEST(Clean, LongPrompts) {
  const auto repeated = [](std::string_view part, size_t characters) {
    std::string s;
    while (s.size() < characters) s += part;
    return s;
  };
  std::string nested = "&";
  for (int i = 0; i < 25000; ++i) nested += "amp;";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(clean_prompt(repeated("a ", 100000)).size(), 99999u);
  EXPECT_EQ(clean_prompt(repeated("\x1b[", 100000)).size(), 50000u);
  EXPECT_EQ(clean_prompt(repeated("&&&&", 100000)).size(), 100000u);
  EXPECT_EQ(clean_prompt(repeated("\u0301\u0323", 100000)).size(), 100000u);  // one run to be put into order
  EXPECT_LT(clean_prompt(nested).size(), nested.size());
  EXPECT_EQ(clean_prompt(repeated("&lt;", 100000)).size(), 25000u);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 20);
}

}  // namespace
}  // namespace megaslide
