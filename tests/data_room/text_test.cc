#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "data/caption.h"
#include "data/csv.h"
#include "model/text_encoder.h"

namespace megaslide {
namespace {

ThreadPool pool(1);

double dot(const EncodedText& a, size_t i, const EncodedText& b, size_t j) {
  const int64_t d = a.rows.shape()[1];
  double sum = 0;
  for (int64_t k = 0; k < d; ++k) sum += static_cast<double>(a.rows.f32()[static_cast<int64_t>(i) * d + k]) * b.rows.f32()[static_cast<int64_t>(j) * d + k];
  return sum / static_cast<double>(d);
}

TEST(TextEncoder, CleansWhiteSpaceAndBrokenBytes) {
  EXPECT_EQ(clean_text("  a\t red \r\n\xc2\xa0kite\xe3\x80\x80 "), "a red kite");
  EXPECT_EQ(clean_text("caf\xc3\xa9 \xf0\x9f\xaa\x81"), "caf\xc3\xa9 \xf0\x9f\xaa\x81");
  EXPECT_EQ(clean_text("a\xff" "b\xc3"), "a\xef\xbf\xbd" "b\xef\xbf\xbd");
  EXPECT_EQ(clean_text(std::string_view("a\0b", 3)), "a b");
  EXPECT_EQ(clean_text(" \n "), "");
}

TEST(TextEncoder, RowsAreWordsOfUnitSize) {
  const HashedNgramEncoder encoder(32, 64);
  const EncodedText e = encoder.encode(pool, "A red kite, over dunes!");
  ASSERT_EQ(e.rows.shape(), (Shape{5, 64}));
  ASSERT_EQ(e.ids.size(), 5u);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(dot(e, i, e, i), 1, 1e-5);  // 64 roundings of 2^-24
  EXPECT_EQ(e.ids, encoder.encode(pool, "a RED kite over dunes").ids);  // case and punctuation at the ends do not count
}

TEST(TextEncoder, LikeWordsAreNear) {
  const HashedNgramEncoder encoder(32, 4096);
  const EncodedText a = encoder.encode(pool, "walking"), b = encoder.encode(pool, "walked"), c = encoder.encode(pool, "ocean");
  EXPECT_GT(dot(a, 0, b, 0), 0.05);
  // Unrelated vectors of 4096 random signs: a standard deviation of 1/64.
  EXPECT_LT(std::abs(dot(a, 0, c, 0)), 5.0 / 64);
  const EncodedText order = encoder.encode(pool, "dog bites man"), other = encoder.encode(pool, "man bites dog");
  EXPECT_LT(dot(order, 1, other, 1), 0.95) << "the word before is part of the row";
  EXPECT_GT(dot(order, 1, other, 1), 0.5);
}

TEST(TextEncoder, EmptyLongAndPadded) {
  ModelConfig config;
  config.text_encoder = TextEncoderKind::kHashedNgram;
  config.text_len = 4;
  config.text_dim = 16;
  const auto encoder = make_text_encoder(config);
  EXPECT_EQ(encoder->encode(pool, "").rows.shape(), (Shape{0, 16}));
  const HostTensor empty = pad_text(config, encoder->encode(pool, " \n").rows.view());
  for (int64_t i = 0; i < empty.elements(); ++i) EXPECT_EQ(empty.f32()[i], 0);
  const EncodedText e = encoder->encode(pool, "one two three four five six");
  EXPECT_EQ(e.cut, 2);
  EXPECT_EQ(e.rows.shape(), (Shape{4, 16}));
  const HostTensor padded = pad_text(config, encoder->encode(pool, "one two").rows.view());
  ASSERT_EQ(padded.shape(), (Shape{4, 16}));
  for (int64_t i = 32; i < 64; ++i) EXPECT_EQ(padded.f32()[i], 0);
  EXPECT_NE(padded.f32()[0], 0);
}

TEST(TextEncoder, EqualOnEveryMachine) {
  // Integer hashes and one square root: these bits are the encoder's identity. A change needs a new identity string.
  const HashedNgramEncoder encoder(32, 8);
  const EncodedText e = encoder.encode(pool, "tree");
  EXPECT_EQ(encoder.identity(), "hashed-ngram-1:32x8");
  EXPECT_EQ(e.ids[0], 1350707034);
  uint32_t bits[8];
  std::memcpy(bits, e.rows.data(), sizeof bits);
  const uint32_t wanted[8] = {0xbee7e3ed, 0x3f67e3ed, 0x00000000, 0xbfadeaf2, 0x3ee7e3ed, 0xbf67e3ed, 0x3fe7e3ed, 0xbf67e3ed};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(bits[i], wanted[i]) << i;
}

TEST(DecodeText, Encodings) {
  EXPECT_EQ(decode_text("\xef\xbb\xbf" "a kite").text, "a kite");
  EXPECT_EQ(decode_text("a\r\nb\rc\n").text, "a\nb\nc\n");
  EXPECT_EQ(decode_text(std::string_view("\xff\xfe" "a\0\xe7\0", 6)).text, "a\xc3\xa7");
  EXPECT_EQ(decode_text(std::string_view("\xfe\xff\0a\xd8\x3e\xde\x81", 8)).text, "a\xf0\x9f\xaa\x81");
  const DecodedText c = decode_text("a child\x92s kite");
  EXPECT_EQ(c.text, "a child\xe2\x80\x99s kite");
  ASSERT_EQ(c.notes.size(), 1u);
  EXPECT_EQ(c.notes[0], "byte 0x92 at offset 7 is not UTF-8: read as Windows-1252");
  const DecodedText n = decode_text(std::string_view("a\0b", 3));
  EXPECT_EQ(n.text, "ab");
  EXPECT_EQ(n.notes.size(), 1u);
  EXPECT_EQ(decode_text(std::string_view("\xff\xfe" "a", 3)).notes.size(), 1u);
  EXPECT_EQ(decode_text("").text, "");
}

TEST(Csv, QuotesLinesAndDialects) {
  const auto r = parse_csv("a,b\n\"x\"\"y\",\"1\n2\"\n\n,\nlast");
  ASSERT_EQ(r.size(), 4u);
  EXPECT_EQ(r[1].fields, (std::vector<std::string>{"x\"y", "1\n2"}));
  EXPECT_EQ(r[1].line, 2u);
  EXPECT_EQ(r[2].fields, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(r[2].line, 5u);
  EXPECT_EQ(r[3].fields, (std::vector<std::string>{"last"}));
  EXPECT_EQ(parse_csv("\"open")[0].problem, "a quote is never closed");
  EXPECT_EQ(parse_csv("\"a\"b,c")[0].problem, "text after a closing quote");
  EXPECT_EQ(parse_csv("\"a\" ,c")[0].fields, (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(guess_separator("video;caption\na,b;c"), ';');
  EXPECT_EQ(guess_separator("video\tcaption\n"), '\t');
  EXPECT_EQ(guess_separator("\"a;b;c\",caption"), ',');
  EXPECT_TRUE(parse_csv("").empty());
}

}  // namespace
}  // namespace megaslide
