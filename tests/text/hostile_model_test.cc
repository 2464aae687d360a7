// Damaged and malicious tokenizer files: an Error that names the file, whatever they say.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/philox.h"
#include "text/spiece_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

const std::string kModelFile = MEGASLIDE_TEST_DATA "/umt5/tokenizer/spiece.model";

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}
std::string message_of_model(std::string_view bytes) {
  return message_of([&] { Tokenizer(bytes, "X/spiece.model"); });
}

// A small model that sentencepiece accepts, changed by `change`.
std::string small_model(const std::function<void(SentencePieceModel&)>& change = {}) {
  SentencePieceModel m;
  m.pieces = {{"<pad>", 0, SentencePiece::kControl}, {"</s>", 0, SentencePiece::kControl}, {"<unk>", 0, SentencePiece::kUnknown},
              {"\u2581", -2, SentencePiece::kNormal}, {"a", -3, SentencePiece::kNormal}, {"\u2581" "ab", -1, SentencePiece::kNormal}};
  if (change) change(m);
  return serialize_sentencepiece_model(m);
}

TEST(SmallModel, UnknownRunsAreOneUnk) {
  const Tokenizer t(small_model(), "X/spiece.model");
  EXPECT_EQ(t.encode("ab a", 512).ids, (std::vector<int64_t>{5, 3, 4, 1}));
  EXPECT_EQ(t.encode("axyza", 512).ids, (std::vector<int64_t>{3, 4, 2, 4, 1}));
  EXPECT_EQ(t.encode("", 512).ids, (std::vector<int64_t>{1}));
  EXPECT_EQ(t.encode("aaaa", 3).ids, (std::vector<int64_t>{3, 4, 1}));
  EXPECT_EQ(t.encode("aaaa", 3).pieces, 5);
  EXPECT_EQ(t.encode("aaaa", 3).cut(3), 3);
  EXPECT_EQ(t.encode("aa", 4).cut(4), 0);
  EXPECT_EQ(t.encode("aaaa", 1).ids, (std::vector<int64_t>{1}));
  EXPECT_EQ(t.unknown_characters(), UnknownCharacters::kUnk);
}

TEST(HostileModel, EachFaultIsNamed) {
  const auto with = [](const std::function<void(SentencePieceModel&)>& change) { return message_of_model(small_model(change)); };
  const auto has = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find("X/spiece.model"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(message_of_model(""), "holds no pieces");
  has(message_of_model("\x08\x01"), "field 1 is not bytes");
  has(message_of_model("\x0a\xff\xff\xff\xff\x0f"), "says it has");
  has(message_of_model(std::string(40, '\xff')), "a number of more than 64 bits");
  has(message_of_model("<!DOCTYPE html><html>"), "byte 0");
  has(with([](auto& m) { m.pieces[4].text = "\u2581"; }), "was there before");
  has(with([](auto& m) { m.pieces[4].text = ""; }), "has no text");
  has(with([](auto& m) { m.pieces[4].text = "\xc3"; }), "is not UTF-8");
  has(with([](auto& m) { m.pieces[4].text = std::string_view("a\0b", 3); }), "contains a NUL");
  const std::string huge(300, 'a');
  has(with([&](auto& m) { m.pieces[4].text = huge; }), "has 300 bytes");
  has(with([](auto& m) { m.pieces[4].score = std::numeric_limits<float>::quiet_NaN(); }), "a score of nan");
  has(with([](auto& m) { m.pieces[4].type = 9; }), "of type 9");
  has(with([](auto& m) { m.pieces[4].type = SentencePiece::kUnknown; }), "2 pieces stand for unknown text");
  has(with([](auto& m) { m.pieces[2].type = SentencePiece::kControl; }), "0 pieces stand for unknown text");
  has(with([](auto& m) { m.pieces[4] = {"<0x41>", 0, SentencePiece::kByte}; }), "1 byte pieces");
  has(with([](auto& m) { m.end = "</end>"; }), "has no control piece");
  has(message_of_model("\x12\x02\x18\x02"), "of type 2 (1 unigram");
}

std::string charsmap(const std::vector<uint32_t>& units, std::string_view replacements) {
  std::string s(4 + units.size() * 4, '\0');
  const auto bytes = static_cast<uint32_t>(units.size() * 4);
  std::memcpy(s.data(), &bytes, 4);
  std::memcpy(s.data() + 4, units.data(), bytes);
  s += replacements;
  return s;
}

// Tries that would lead the library out of its memory, in a circle, or to more matches than it has room for.
TEST(HostileModel, NormaliserIsChecked) {
  const std::string_view nul("\0", 1);
  std::vector<uint32_t> units(256, 0x80000000);
  units[0] = 1u << 10;  // base 1
  EXPECT_EQ(check_charsmap(""), "");
  EXPECT_EQ(check_charsmap(charsmap(units, nul)), "");
  EXPECT_NE(check_charsmap("abc").find("cut short"), std::string::npos);
  EXPECT_NE(check_charsmap(charsmap(std::vector<uint32_t>(8), nul)).find("blocks of 1024"), std::string::npos);
  EXPECT_NE(check_charsmap(charsmap(units, "")).find("of 1028 in all"), std::string::npos);
  EXPECT_NE(check_charsmap(charsmap(units, "ab")).find("does not end"), std::string::npos);
  auto changed = units;
  changed[0] = 300u << 10;
  EXPECT_NE(check_charsmap(charsmap(changed, nul)).find("points beyond"), std::string::npos);
  changed = units;
  changed[1 ^ 'a'] = 'a' | ((1u ^ 1 ^ 'a') << 10);  // its child 'a' has the same base
  EXPECT_NE(check_charsmap(charsmap(changed, nul)).find("leads back"), std::string::npos);
  changed = units;
  changed[0] = 1u << 10 | 1u << 8;  // has a value, at unit 1
  changed[1] = 0x80000005;
  EXPECT_NE(check_charsmap(charsmap(changed, nul)).find("points to byte 5"), std::string::npos);
  changed[1] = 0x80000000;
  EXPECT_EQ(check_charsmap(charsmap(changed, nul)), "");
  EXPECT_NE(check_charsmap(charsmap(changed, std::string(1000, 'x') + '\0')).find("1000 bytes"), std::string::npos);
  EXPECT_NE(check_charsmap(charsmap(changed, std::string_view("\xc3\0", 2))).find("not UTF-8"), std::string::npos);

  // A chain of 40 nested rules: each unit has a value and one child, in a block of its own.
  std::vector<uint32_t> chain(41 * 256, 0x80000000);
  uint32_t at = 0;
  for (uint32_t i = 0; i < 40; ++i) {
    const uint32_t base = (i + 1) * 256 + 2;
    chain[at] = (chain[at] & 0xff) | ((base ^ at) << 10) | 1u << 8;
    chain[base] = 0x80000000;
    at = base ^ 'a';
    chain[at] = 'a';
  }
  chain[at] = 'a' | ((at ^ (40 * 256 + 2)) << 10);
  const std::string problem = check_charsmap(charsmap(chain, nul));
  EXPECT_TRUE(problem.find("begin alike") != std::string::npos || problem.find("leads back") != std::string::npos) << problem;
}

// What is accepted must also be usable: every mutant either throws an Error or encodes.
TEST(HostileModel, MutantsOfARealModel) {
  const std::string whole = read_file(kModelFile);
  const auto random = [](uint64_t i, uint64_t n) { return Random(7, RandomPurpose::kTest).uniform(i, 0) * static_cast<double>(n); };
  int refused = 0, accepted = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    std::string bytes = whole;
    const auto at = static_cast<size_t>(random(3 * i, i % 3 == 0 ? 14000 : bytes.size()));
    if (i % 5 == 0) bytes.resize(at);
    else for (size_t k = at; k < std::min(bytes.size(), at + 1 + i % 4); ++k) bytes[k] = static_cast<char>(random(3 * i + 1 + k, 256));
    const std::string message = message_of([&] {
      const Tokenizer t(bytes, "X/spiece.model");
      const TokenizedText text = t.encode("Ａ fox — ﬁlm “x” 園丁 \u00bd ½ 🦊 e\u0301 ﷺ", 512);
      for (const int64_t id : text.ids) ASSERT_LT(id, t.size());
    });
    message.empty() ? ++accepted : ++refused;
    if (!message.empty()) {
      ASSERT_NE(message.find("X/spiece.model"), std::string::npos) << message;
    }
  }
  EXPECT_GT(refused, 60);
  EXPECT_GT(accepted, 20);  // changed scores and texts of pieces are still models
}

TEST(HostileModel, RandomBytesAndMissingFiles) {
  for (uint64_t i = 0; i < 200; ++i) {
    std::string bytes(200 + i, '\0');
    for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<char>(Random(8, RandomPurpose::kTest).uniform(i, k) * 256);
    EXPECT_NE(message_of_model(bytes), "");
  }
  const auto message = message_of([] { Tokenizer::open("/nonexistent/tokenizer"); });
  EXPECT_NE(message.find("/nonexistent/tokenizer/spiece.model"), std::string::npos) << message;
}

TEST(TokenizerJson, ByteFallback) {
  EXPECT_EQ(byte_fallback_of(R"({"model":{"type":"Unigram","vocab":[["a",-1]],"byte_fallback":true}})", "t"), true);
  EXPECT_EQ(byte_fallback_of(R"({"byte_fallback":true,"model":{"byte_fallback":false}})", "t"), false);
  EXPECT_EQ(byte_fallback_of(R"({"model":{"byte_fallback":null}})", "t"), std::nullopt);
  EXPECT_EQ(byte_fallback_of(R"({"model":[]})", "t"), std::nullopt);
  EXPECT_EQ(byte_fallback_of("{}", "t"), std::nullopt);
  for (const char* bad : {"", "[]", "{", R"({"model":{"byte_fallback":tru}})", "{\"model\":\"\xff\"}", "{} {}"})
    EXPECT_NE(message_of([&] { byte_fallback_of(bad, "X/tokenizer.json"); }).find("X/tokenizer.json"), std::string::npos) << bad;
  EXPECT_NE(message_of([] { byte_fallback_of(std::string(100000, '['), "X/tokenizer.json"); }), "");
}

TEST(TokenizerJson, DecidesUnknownCharacters) {
  const TemporaryFolder temporary;
  temporary.copy(kModelFile, "spiece.model");
  const std::string& folder = temporary.path();
  const std::string plain = tokenizer_identity(folder);
  EXPECT_EQ(Tokenizer::open(folder).unknown_characters(), UnknownCharacters::kBytes);
  write_file_atomic(folder + "/tokenizer.json", R"({"model":{"byte_fallback":false}})");
  EXPECT_EQ(Tokenizer::open(folder).unknown_characters(), UnknownCharacters::kUnk);
  EXPECT_EQ(Tokenizer::open(folder, UnknownCharacters::kBytes).unknown_characters(), UnknownCharacters::kBytes);
  EXPECT_NE(tokenizer_identity(folder), plain);
  EXPECT_EQ(tokenizer_identity(folder, "abc"), "abc+unk");
}

TEST(LongPrompt, IsLinearAndReportsWhatIsCut) {
  const Tokenizer t = Tokenizer::open(MEGASLIDE_TEST_DATA "/umt5/tokenizer");
  for (const char* part : {"a", "🦊", "robot ", "ha", "\u2581"}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += part;
    const TokenizedText ids = t.encode(text, 512);
    ASSERT_LE(ids.ids.size(), 512u);
    EXPECT_EQ(ids.ids.back(), 1);
    EXPECT_EQ(ids.cut(512), ids.pieces < 512 ? 0 : ids.pieces - 511);
  }
  EXPECT_NE(message_of([&] { t.encode(std::string((64 << 20) + 1, 'a'), 512); }).find("at most"), std::string::npos);
}

}  // namespace
}  // namespace megaslide
