#include "base/json_cursor.h"

#include <gtest/gtest.h>

#include "tests/support/error_text.h"

namespace megaslide {
namespace {

using testing_support::error_of;

std::string parse(std::string_view text) {
  return error_of([&] {
    JsonCursor c(text, "f");
    c.skip_value();
    c.end();
  });
}

TEST(JsonCursor, ReadsValues) {
  JsonCursor c(" {\"a\" : 18446744073709551615, \"b\":[-1.5e2,true,null], \"c\":\"x\\u00e9\\ud83d\\ude00\\n\"} ", "f");
  bool first = true, element = true;
  std::string key;
  c.begin_object();
  ASSERT_TRUE(c.next_key(first, key));
  EXPECT_EQ(key, "a");
  EXPECT_EQ(c.u64("a"), UINT64_MAX);
  ASSERT_TRUE(c.next_key(first, key));
  c.begin_array();
  ASSERT_TRUE(c.next_element(element));
  EXPECT_FALSE(c.next_is_integer());
  EXPECT_EQ(c.number("b"), -150);
  ASSERT_TRUE(c.next_element(element));
  EXPECT_TRUE(c.boolean("b"));
  ASSERT_TRUE(c.next_element(element));
  EXPECT_TRUE(c.null());
  EXPECT_FALSE(c.next_element(element));
  ASSERT_TRUE(c.next_key(first, key));
  EXPECT_EQ(c.string("c"), "xé😀\n");
  EXPECT_FALSE(c.next_key(first, key));
  c.end();
}

TEST(JsonCursor, RejectsWhatIsNotJson) {
  EXPECT_EQ(parse("[1, 2]"), "no error");
  for (const char* bad : {"", "{", "[1,]", "{\"a\":1,}", "{,}", "[1 2]", "{\"a\" 1}", "{a:1}", "'x'", "01", "-", "1.", ".5", "1e", "+1", "0x1",
                          "tru", "nul", "[1]]", "\"\\x\"", "\"\\u12g4\"", "\"a", "\"\t\"", "// x\n1", "\xef\xbb\xbf{}"})
    EXPECT_NE(parse(bad).find("not valid JSON"), std::string::npos) << bad << ": " << parse(bad);
  for (const char* bad : {"\"\\ud800\"", "\"\\udc00x\"", "\"\\ud800\\u0041\"", "\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\""})
    EXPECT_NE(parse(bad).find("UTF-8"), std::string::npos) << bad << ": " << parse(bad);
  EXPECT_NE(parse("NaN").find("JSON does not have"), std::string::npos);
}

TEST(JsonCursor, DepthIsBounded) {
  const auto nested = [](int n) { return std::string(static_cast<size_t>(n), '[') + std::string(static_cast<size_t>(n), ']'); };
  EXPECT_EQ(parse(nested(JsonCursor::kMaxDepth)), "no error");
  EXPECT_NE(parse(nested(JsonCursor::kMaxDepth + 1)).find("nested deeper"), std::string::npos);
  EXPECT_NE(parse(std::string(1'000'000, '[')).find("nested deeper"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(parse(objects).find("nested deeper"), std::string::npos);
}

TEST(JsonCursor, PositionsAreLineAndColumnOrByte) {
  EXPECT_NE(parse("{\n  \"a\": 1,\n  \"b\": x}").find("f:3:8: "), std::string::npos);
  EXPECT_NE(error_of([] {
              JsonCursor c("{\"a\":x}", "f", 8);
              c.skip_value();
            }).find("f: byte 13: "),
            std::string::npos);
}

TEST(JsonCursor, IntegersAreExact) {
  const auto u64 = [](std::string_view text) {
    return error_of([&] {
      JsonCursor c(text, "f");
      c.u64("n");
    });
  };
  EXPECT_EQ(u64("9007199254740993"), "no error");
  for (const char* bad : {"18446744073709551616", "-1", "1.0", "1e3", "99999999999999999999999999999999"})
    EXPECT_NE(u64(bad).find("expected an integer"), std::string::npos) << bad;
  EXPECT_NE(u64("\"1\"").find("expected a number for n, found a string"), std::string::npos);
  EXPECT_NE(error_of([] { JsonCursor("1e999", "f").number("n"); }).find("out of range"), std::string::npos);
}

}  // namespace
}  // namespace megaslide
