#include "diffusion/prompts.h"

#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace megaslide {
namespace {

TEST(Prompts, FilesAsPeopleSaveThem) {
  const auto prompts = parse_prompts(
      "\xEF\xBB\xBF# comment\r\n\r\nA kite over dunes   \r\na kite over dunes\n\t100% wool, 50 % off #1\n   \nA kite over dunes\n# last", "p");
  EXPECT_EQ(prompts, (std::vector<std::string>{"A kite over dunes", "a kite over dunes", "100% wool, 50 % off #1", "A kite over dunes"}));
}

TEST(Prompts, RefusesWhatIsNoText) {
  EXPECT_THROW(parse_prompts("", "p"), Error);
  EXPECT_THROW(parse_prompts("# only a comment\n\n", "p"), Error);
  EXPECT_THROW(parse_prompts(std::string_view("\xFF\xFE" "a\0b\0", 6), "p"), Error);
  EXPECT_THROW(parse_prompts(std::string_view("a\0b", 3), "p"), Error);
  try {
    parse_prompts("good\ncaf\xE9\n", "list.txt");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(e.what()).find("list.txt:2"), std::string::npos) << e.what();
  }
}

TEST(Prompts, Utf8) {
  for (const char* good : {"", "a", "é", "日本", "😀", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"}) EXPECT_TRUE(is_clean_utf8(good)) << good;
  for (const char* bad : {"\x80", "\xC0\xAF", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "a\xFF"})
    EXPECT_FALSE(is_clean_utf8(bad));
}

TEST(Prompts, NamesNeitherCollideNorEscape) {
  const std::string long_prompt(3000, 'k');
  std::string japanese;
  for (int i = 0; i < 100; ++i) japanese += "凧";
  const std::vector<std::string> prompts{
      "A kite over dunes", "a kite over dunes", "she says \"stop\", then waits", "-negative looking", "a path / with ../ slashes",
      "fa\u00E7ades at dusk", "fac\u0327ades at dusk", japanese, long_prompt, long_prompt + "k", "..", "A kite over dunes", "ends with a dot."};
  const auto named = name_prompts(prompts);
  ASSERT_EQ(named.size(), prompts.size());
  std::set<std::string> folded;
  for (const auto& n : named) {
    EXPECT_LE(n.stem.size(), 230u);
    EXPECT_EQ(n.stem.find('/'), std::string::npos) << n.stem;
    EXPECT_FALSE(n.stem.starts_with('.') || n.stem.starts_with('-')) << n.stem;
    EXPECT_TRUE(is_clean_utf8(n.stem)) << n.stem;
    std::string key;
    for (const char c : n.stem) key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    EXPECT_TRUE(folded.insert(key).second) << n.stem;
  }
  EXPECT_EQ(named[2].stem, "she says \"stop\", then waits-0");
  EXPECT_EQ(named[12].stem, "ends with a dot.-0");
  EXPECT_EQ(named[11].repeat, 1);
  EXPECT_TRUE(named[11].stem.ends_with("-1"));
  // Both spellings of the cedilla carry a hash: a normalising file system would take one for the other.
  EXPECT_NE(named[5].stem.find('~'), std::string::npos);
  EXPECT_NE(named[6].stem.find('~'), std::string::npos);
}

TEST(PromptNames, APromptMayBeWhatTheNameOfAnotherLooksLike) {
  const std::string hidden = name_prompts({".hidden"})[0].stem;
  const std::string literal = hidden.substr(0, hidden.size() - 2);  // without "-0"
  const auto named = name_prompts({".hidden", literal, ".hidden"});
  EXPECT_EQ(named[0].stem, hidden);
  EXPECT_NE(named[1].stem, hidden);
  EXPECT_TRUE(named[1].stem.starts_with(literal + "~")) << named[1].stem;
  EXPECT_EQ(named[2].stem, literal + "-1");
}

TEST(Prompts, PlainNamesStayPlain) {
  const auto named = name_prompts({"a dog", "a dog", "a cat"});
  EXPECT_EQ(named[0].stem, "a dog-0");
  EXPECT_EQ(named[1].stem, "a dog-1");
  EXPECT_EQ(named[2].stem, "a cat-0");
}

}  // namespace
}  // namespace megaslide
