// CLIP's byte-pair encoding against OpenAI's own tokenizer, its three vocabulary files, and hostile ones.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include <nlohmann/json.hpp>
#include <zlib.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "tests/support/temporary_folder.h"
#include "text/clip_tokenizer.h"
#include "text/gunzip.h"
#include "text/letters.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;
using Ids = std::vector<int64_t>;

const std::string kVocabulary = MEGASLIDE_SOURCE_DIR "/configs/clip/bpe_simple_vocab_16e6.txt.gz";

const ClipTokenizer& published() {
  static const ClipTokenizer t = ClipTokenizer::open(kVocabulary);
  return t;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}
std::string message_of_file(const std::string& bytes) {
  return message_of([&] { ClipTokenizer(bytes, "X/merges.txt"); });
}

std::string gzipped(const std::string& text) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, text.size()), 0);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// The published merges as the lines of a merges.txt.
std::string merges_text() {
  const std::string all = gunzip(read_file(kVocabulary), kVocabulary, 16 << 20);
  std::string text = "#version: 0.2\n";
  size_t at = all.find('\n') + 1;
  for (int i = 0; i < ClipVocabulary::kPublishedMerges; ++i) {
    const size_t end = all.find('\n', at) + 1;
    text += all.substr(at, end - at);
    at = end;
  }
  return text;
}

TEST(ClipTokenizer, GoldenPrompts) {
  const auto golden = nlohmann::json::parse(read_file(MEGASLIDE_TEST_DATA "/vbench/clip_bpe.json"));
  const ClipTokenizer& t = published();
  EXPECT_EQ(t.size(), 49408);
  EXPECT_EQ(t.start_id(), golden.at("start").get<int64_t>());
  EXPECT_EQ(t.end_id(), golden.at("end").get<int64_t>());
  const LogSink before = set_log_sink([](LogLevel, const std::string&) {});
  int cases = 0, repairs = 0, refused = 0;
  for (const auto& c : golden.at("prompts")) {
    const auto text = c.at("text").get<std::string>();
    SCOPED_TRACE(text);
    // Mojibake is left as it is, so that its ids are those without ftfy.
    const bool repair = c.at("ftfy_steps") == nlohmann::json{"fix_encoding"};
    const Ids ids = t.encode(text);
    EXPECT_EQ(ids, c.at(repair ? "ids_without_ftfy" : "ids").get<Ids>());
    if (!repair) {
      EXPECT_EQ(cut_to_viclip_context(ids), c.at("viclip_32").get<Ids>());
    }
    const bool error = c.at("openai_77") == "error";
    EXPECT_EQ(!message_of([&] { require_clip_context(ids, text); }).empty(), error);
    ++cases, repairs += repair, refused += error;
  }
  set_log_sink(before);
  EXPECT_EQ(cases, 44);
  EXPECT_EQ(repairs, 1);
  EXPECT_EQ(refused, 2);
}

TEST(ClipTokenizer, ThreeFilesGiveOneVocabulary) {
  const std::string lines = merges_text();
  nlohmann::json vocabulary, merges = nlohmann::json::array();
  // The spelling of a piece, from the order in which the lines make them; single bytes from their place in the order.
  std::vector<std::string> singles;
  for (int b = 0x21; b < 0x100; ++b)
    if (b <= 0x7E || (b >= 0xA1 && b != 0xAD)) append_utf8(singles.emplace_back(), static_cast<char32_t>(b));
  for (int b = 0x100; b < 0x144; ++b) append_utf8(singles.emplace_back(), static_cast<char32_t>(b));
  ASSERT_EQ(singles.size(), 256u);
  int64_t id = 0;
  for (const auto& s : singles) vocabulary[s] = id++;
  for (const auto& s : singles) vocabulary[s + "</w>"] = id++;
  for (size_t at = lines.find('\n') + 1; at < lines.size();) {
    const size_t end = lines.find('\n', at), blank = lines.find(' ', at);
    merges.push_back(lines.substr(at, end - at));
    vocabulary[lines.substr(at, blank - at) + lines.substr(blank + 1, end - blank - 1)] = id++;
    at = end + 1;
  }
  const auto json = [&](const nlohmann::json& v, const nlohmann::json& m) {
    return nlohmann::json{{"version", "1.0"}, {"model", {{"type", "BPE"}, {"end_of_word_suffix", "</w>"}, {"vocab", v}, {"merges", m}}}}.dump();
  };
  const std::string text = "A fantasy Landscape, isn't it? 日本 🎬";
  const Ids ids = published().encode(text);
  EXPECT_EQ(ClipTokenizer(lines, "merges.txt").encode(text), ids);
  EXPECT_EQ(ClipTokenizer(json(vocabulary, merges), "tokenizer.json").encode(text), ids);
  vocabulary["<|startoftext|>"] = 49406, vocabulary["<|endoftext|>"] = 49407;
  const std::string two_words = json(vocabulary, merges);
  EXPECT_EQ(ClipTokenizer(two_words, "tokenizer.json").size(), 49408);
  vocabulary["fox</w>"] = 3241;
  EXPECT_NE(message_of_file(json(vocabulary, merges)).find("\"fox</w>\" has the id 3241, not 3240 as its place says"), std::string::npos);
  vocabulary.erase("fox</w>");
  EXPECT_NE(message_of_file(json(vocabulary, merges)).find("lacks \"fox</w>\""), std::string::npos);

  const TemporaryFolder folder;
  EXPECT_NE(message_of([&] { ClipTokenizer::open(folder.path()); }).find("holds no vocabulary of CLIP"), std::string::npos);
  FileWriter file(folder.path() + "/tokenizer.json");
  file.write(two_words);
  file.close();
  EXPECT_EQ(ClipTokenizer::open(folder.path()).encode(text), ids);
  EXPECT_EQ(ClipTokenizer::open(folder.path()).path(), folder.path() + "/tokenizer.json");
}

TEST(ClipTokenizer, MergesOfASmallVocabulary) {
  const ClipTokenizer t("a b\nab ab\nab c</w>\n", "X");
  EXPECT_EQ(t.size(), 517);
  const int64_t s = 515, e = 516, a = 'a' - '!', abab = 513, abc = 514;
  EXPECT_EQ(t.encode("abc"), (Ids{s, abc, e}));
  // All "ab" first, then pairs of them from the left.
  EXPECT_EQ(t.encode("abababc"), (Ids{s, abab, abc, e}));
  EXPECT_EQ(t.encode("ababababa"), (Ids{s, abab, abab, a + 256, e}));
  EXPECT_EQ(t.encode("aaab"), (Ids{s, a, a, a, 'b' - '!' + 256, e}));
  // The newer tokenizer.json has merges as pairs of words.
  EXPECT_NE(message_of_file(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b"]]}})").find("its vocabulary lacks"), std::string::npos);
  EXPECT_NE(message_of_file(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","b","c"]]}})").find("1:50: a merge is no pair of pieces"), std::string::npos);
}

TEST(ClipTokenizer, CaseOfLettersAndPatterns) {
  EXPECT_EQ(to_lower(U"ΟΔΥΣΣΕΥΣ Σ ΑΣ' ΑΣ'Α İI ẞ"), U"οδυσσευς σ ας' ασ'α i\u0307i ß");
  EXPECT_EQ(to_lower(U"ǅ Ა Ⓐ 𞤀 x"), U"ǆ ა ⓐ 𞤢 x");
  EXPECT_TRUE(is_letter(U'ª') && is_letter(U'あ') && is_letter(0x30000) && !is_letter(U'1') && !is_letter(0x345) && !is_letter(0x10FFFF));
  EXPECT_TRUE(is_number(U'½') && is_number(U'Ⅷ') && is_number(U'٣') && !is_number(U'a') && !is_number(0));
  const ClipTokenizer& t = published();
  // A long s closes a contraction as an s does, but is spelled by its bytes; U+0345 belongs to no word.
  EXPECT_EQ(t.encode("a'\u017f"), (Ids{49406, 320, '\'' - '!', 129, 379, 49407}));
  EXPECT_EQ(t.encode("a \u0345 b"), t.encode("a b"));
  // Signs before it take its first two: it is no literal there.
  EXPECT_EQ(t.encode("!!<|endoftext|>"), t.encode("!!<| endoftext |>"));
  EXPECT_EQ(t.encode("<|EndOfText|>"), (Ids{49406, 49407, 49407}));
}

TEST(ClipTokenizer, HostileVocabularies) {
  const std::string published_bytes = read_file(kVocabulary);
  EXPECT_NE(message_of_file(published_bytes.substr(0, published_bytes.size() / 2)).find("the gzip data ends early"), std::string::npos);
  EXPECT_NE(message_of_file(published_bytes.substr(0, 12)).find("the gzip data ends early"), std::string::npos);
  EXPECT_NE(message_of_file(published_bytes + "x").find("1 bytes follow the gzip data"), std::string::npos);
  std::string flipped = published_bytes;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x10);
  EXPECT_NE(message_of_file(flipped).find("X/merges.txt: "), std::string::npos);
  flipped = published_bytes;
  flipped[flipped.size() - 7] = static_cast<char>(flipped[flipped.size() - 7] ^ 1);  // of the check sum
  EXPECT_NE(message_of_file(flipped).find("damaged gzip data"), std::string::npos);
  EXPECT_NE(message_of_file(gzipped(std::string(64 << 20, 'a'))).find("unpacks to more than 16777216 bytes"), std::string::npos);

  EXPECT_NE(message_of_file("").find("holds no merges"), std::string::npos);
  EXPECT_NE(message_of_file("#version: 0.2\n").find("holds no merges"), std::string::npos);
  EXPECT_NE(message_of_file("#version: 0.2\na b\nc\n").find("line 3: is no pair of pieces: \"c\""), std::string::npos);
  EXPECT_NE(message_of_file("a b\n\nc d\n").find("line 2: is no pair of pieces"), std::string::npos);
  EXPECT_NE(message_of_file("a b c\n").find("line 1: is no pair of pieces"), std::string::npos);
  EXPECT_NE(message_of_file("a b\nabc d\n").find("line 2: merges \"abc\", which is no piece so far"), std::string::npos);
  EXPECT_NE(message_of_file("a b\nc d\na b\n").find("line 3: makes \"ab\", which is a piece already"), std::string::npos);
  EXPECT_NE(message_of_file("\xff\xfe a\n").find("line 1: merges"), std::string::npos);
  std::string doubling, piece = "a";
  for (int i = 0; i < 64; ++i, piece += piece.size() < 4096 ? piece : "") doubling += piece + " " + piece + "\n";
  EXPECT_NE(message_of_file(doubling).find("makes a piece of 2048 bytes"), std::string::npos) << message_of_file(doubling);
  EXPECT_NE(message_of_file("{\"model\": {\"type\": \"Unigram\"}}").find("no byte-pair encoding"), std::string::npos);
  EXPECT_NE(message_of_file("{\"model\": ").find("X/merges.txt"), std::string::npos);
  EXPECT_NE(message_of_file("{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}}}").find("X/merges.txt"), std::string::npos);
  EXPECT_NE(message_of([] { ClipTokenizer::open("/nonexistent/merges.txt"); }).find("/nonexistent/merges.txt"), std::string::npos);
}

TEST(ClipTokenizer, HostilePrompts) {
  const ClipTokenizer& t = published();
  EXPECT_EQ(t.encode("\xff"), t.encode("\uFFFD"));
  EXPECT_EQ(t.encode("a \xe2\x82"), t.encode("a \uFFFD\uFFFD"));
  EXPECT_EQ(t.encode(std::string(3, '\0')), (Ids{49406, 49407}));
  for (const std::string& unit : {std::string("a"), std::string("ab"), std::string("'"), std::string("\u03a3'"), std::string("<|"), std::string("1 ")}) {
    std::string text;
    while (text.size() + unit.size() <= 1'000'000) text += unit;
    const auto begin = std::chrono::steady_clock::now();
    const Ids ids = t.encode(text);
    // Quadratic work would take hours; n·log n takes a second, or tens of them under the slowest sanitizer.
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 60);
    EXPECT_EQ(ids.back(), t.end_id());
    EXPECT_EQ(static_cast<int64_t>(cut_to_viclip_context(ids).size()), kViclipContext);
  }
  EXPECT_NE(message_of([&] { t.encode(std::string((1 << 20) + 1, 'a')); }).find("a prompt of 1048577 bytes"), std::string::npos);
}

TEST(ClipTokenizer, ContextOfClip) {
  const Ids fits(77, 5), longer(79, 5);
  EXPECT_EQ(message_of([&] { require_clip_context(fits, "x"); }), "");
  EXPECT_NE(message_of([&] { require_clip_context(longer, "a long one"); }).find("prompt \"a long one\": 79 tokens, 2 more than CLIP reads"), std::string::npos);
  Ids exact(32, 5);
  EXPECT_EQ(cut_to_viclip_context(exact), exact);
}

}  // namespace
}  // namespace megaslide
