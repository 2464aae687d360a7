// The 44 awkward prompts of the reference data: what is left after cleaning, and their ids.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/log.h"
#include "text/clean.h"
#include "text/tokenizer.h"

namespace megaslide {
namespace {

const std::string kFolder = MEGASLIDE_TEST_DATA "/umt5";
constexpr int64_t kMaxLength = 512;

std::vector<int64_t> expected(const nlohmann::json& c, const char* key) {
  const nlohmann::json& v = c.at(key);
  return (v.is_string() ? c.at("ids") : v).get<std::vector<int64_t>>();
}

TEST(GoldenPrompts, CleanedAndIds) {
  const auto all = nlohmann::json::parse(read_file(kFolder + "/tokens.json"));
  const Tokenizer by_model = Tokenizer::open(kFolder + "/tokenizer");
  const Tokenizer unk = Tokenizer::open(kFolder + "/tokenizer", UnknownCharacters::kUnk);
  EXPECT_EQ(by_model.unknown_characters(), UnknownCharacters::kBytes);
  EXPECT_EQ(by_model.size(), 1000);
  EXPECT_EQ(by_model.end_id(), 1);
  int cases = 0, repairs = 0;
  for (const auto& c : all.at("cases")) {
    SCOPED_TRACE(c.at("tag").get<std::string>());
    const auto cleaned = c.at("cleaned").get<std::string>();
    if (c.at("needs_mojibake_repair").get<bool>()) ++repairs;
    else EXPECT_EQ(clean_prompt(c.at("prompt").get<std::string>()), cleaned);
    const TokenizedText text = by_model.encode(cleaned, kMaxLength);
    EXPECT_EQ(text.ids, c.at("ids").get<std::vector<int64_t>>());
    const auto pieces = c.at("pieces_before_truncation").get<int64_t>();
    EXPECT_EQ(text.pieces, pieces);
    EXPECT_EQ(text.cut(kMaxLength), std::max<int64_t>(0, pieces - 511));
    EXPECT_EQ(unk.encode(cleaned, kMaxLength).ids, expected(c, "ids_without_byte_fallback"));
    ++cases;
  }
  EXPECT_EQ(cases, 44);
  EXPECT_EQ(repairs, 1);
}

TEST(GoldenPrompts, MojibakeIsKeptWithAWarning) {
  std::vector<std::string> warnings;
  const LogSink before = set_log_sink([&](LogLevel level, const std::string& text) {
    if (level == LogLevel::kWarning) warnings.push_back(text);
  });
  const auto all = nlohmann::json::parse(read_file(kFolder + "/tokens.json"));
  for (const auto& c : all.at("cases")) {
    warnings.clear();
    clean_prompt(c.at("prompt").get<std::string>());
    EXPECT_EQ(warnings.size(), c.at("needs_mojibake_repair").get<bool>() ? 1u : 0u) << c.at("tag");
    if (!warnings.empty()) {
      EXPECT_NE(warnings[0].find("looks like UTF-8 that was read as Windows-1252"), std::string::npos) << warnings[0];
    }
  }
  set_log_sink(before);
}

}  // namespace
}  // namespace megaslide
