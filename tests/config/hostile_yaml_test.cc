// Files that are no configuration, or try to be more than one.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "config/load.h"
#include "config/yaml.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

std::string message_of(const std::string& yaml) {
  try {
    parse_run_config(yaml, "a.yaml");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    return e.message();
  }
  return "no error";
}

std::string repeat(const std::string& s, size_t n) {
  std::string out;
  out.reserve(s.size() * n);
  for (size_t i = 0; i < n; ++i) out += s;
  return out;
}

TEST(HostileYaml, Nothing) {
  for (const char* empty : {"", "\n\n", "# only a comment\n", "---\n", "~\n"})
    EXPECT_EQ(message_of(empty), "a.yaml:1:1: empty: expected keys and values") << empty;
  EXPECT_EQ(message_of("{}\n"), "no error");
}

TEST(HostileYaml, SomethingElseAtTheTop) {
  EXPECT_EQ(message_of("- a\n- b\n"), "a.yaml:1:1: expected keys and values at the top, got a list");
  EXPECT_EQ(message_of("hello\n"), "a.yaml:1:1: expected keys and values at the top, got \"hello\"");
}

TEST(HostileYaml, Encodings) {
  EXPECT_EQ(message_of("\xef\xbb\xbftrain: {seed: 1}\n"), "no error");
  EXPECT_EQ(message_of("train: {seed: 1}\r\nthreads: 2\r\n"), "no error");
  EXPECT_EQ(message_of("train:\n  s\xe9"
                       "ed: 1\n"),
            "a.yaml:2:4: not UTF-8 text (byte 0xe9): save the file as UTF-8");
  EXPECT_EQ(message_of(std::string("\xff\xfet\0r\0", 6)).substr(0, 22), "a.yaml:1:1: not UTF-8 ");
  EXPECT_EQ(message_of(std::string("train: {seed: 1\0}\n", 18)), "a.yaml:1:16: control character 0x00: this is not a text file");
  EXPECT_EQ(message_of("model: {path: \xed\xa0\x80}\n").substr(0, 22), "a.yaml:1:15: not UTF-8");   // a surrogate
  EXPECT_EQ(message_of("model: {path: \xc0\xaf}\n").substr(0, 22), "a.yaml:1:15: not UTF-8");       // an overlong slash
  EXPECT_EQ(message_of("model: {path: \xe6\x97"), "a.yaml:1:15: not UTF-8 text (byte 0xe6): save the file as UTF-8");
  EXPECT_EQ(message_of("model: {path: \xe6\x97\xa5\xe6\x9c\xac}\n"), "no error");
}

TEST(HostileYaml, Escapes) {
  // yaml-cpp's message ends with the byte behind the backslash, here half of an é.
  EXPECT_EQ(message_of("model: {path: \"\\\xc3\xa9\"}\n"), "a.yaml:1:18: \"unknown escape character: \\xc3\"");
  EXPECT_EQ(message_of("model: {path: \"\\_\"}\n"), "a.yaml:1:15: the escapes \\N and \\_ are not supported: write the character itself");
  // Control characters that escapes have made are written as escapes again.
  const std::string text = to_yaml(parse_run_config("model: {path: \"\\e[31m\\x7f\\0\"}\n", "a.yaml"));
  EXPECT_NE(text.find("\"\\x1b[31m\\x7f\\x00\""), std::string::npos) << text;
  EXPECT_EQ(to_yaml(parse_run_config(text, "a.yaml")), text);
}

TEST(HostileYaml, Tabs) {
  EXPECT_EQ(message_of("train:\n\tseed: 1\n"), "a.yaml:2:1: a tab in the indentation: YAML wants spaces");
  EXPECT_EQ(message_of("train:\n  \tseed: 1\n"), "a.yaml:2:3: a tab in the indentation: YAML wants spaces");
  EXPECT_EQ(message_of("threads: 1\t# a comment\n"), "no error");
}

TEST(HostileYaml, Nesting) {
  EXPECT_NE(message_of(repeat("[", 100000)).find("nested deeper than 32 levels"), std::string::npos);
  EXPECT_NE(message_of(repeat("{a: ", 100000)).find("nested deeper than 32 levels"), std::string::npos);
  EXPECT_NE(message_of(repeat("- ", 100000)).find("nested deeper than 32 levels"), std::string::npos);
  EXPECT_NE(message_of("? " + repeat("? ", 5000) + "a").find("a.yaml:1:"), std::string::npos);
  EXPECT_NE(message_of(repeat(": ", 5000)).find("a.yaml:1:"), std::string::npos);
}

TEST(HostileYaml, AnchorsAliasesTagsMerges) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c <= 'z'; ++c) bomb += std::string(1, c) + ": &" + c + " [" + repeat(std::string("*") + static_cast<char>(c - 1) + ", ", 8) + "x]\n";
  EXPECT_EQ(message_of(bomb), "a.yaml:1:4: anchors and aliases are not supported: write the value out");
  EXPECT_EQ(message_of("train: {seed: *a}\n").substr(0, 12), "a.yaml:1:15:");
  EXPECT_EQ(message_of("train:\n  <<: {seed: 1}\n"), "a.yaml:2:3: merge keys (<<) are not supported: write the keys out");
  EXPECT_EQ(message_of("model: {path: !!python/object x}\n"), "a.yaml:1:15: tags (!!...) are not supported");
  EXPECT_EQ(message_of("train: {seed: !!int 5}\n"), "a.yaml:1:15: tags (!!...) are not supported");
}

TEST(HostileYaml, KeysThatAreNoNames) {
  EXPECT_EQ(message_of("[a]: 1\n"), "a.yaml:1:1: a key must be a name, got a list");
  EXPECT_EQ(message_of("{a: 1}: 1\n"), "a.yaml:1:1: a key must be a name, got a map");
  EXPECT_EQ(message_of("~: 1\n"), "a.yaml:1:1: a key must be a name, got nothing");
  EXPECT_EQ(message_of("\"\": 1\n").substr(0, 29), "a.yaml:1:1: : unknown key; kn");
  EXPECT_EQ(message_of(repeat("a", 100000) + ": 1\n").substr(0, 9), "a.yaml:1:");
  EXPECT_LT(message_of(repeat("a", 1000) + ": 1\n").size(), 400u);
  EXPECT_EQ(message_of("\"train\\e[31m\": 1\n").find('\033'), std::string::npos);
  EXPECT_EQ(message_of("train: {seed: \"\\e[31m\"}\n").find('\033'), std::string::npos);
}

TEST(HostileYaml, TwoDocuments) {
  EXPECT_EQ(message_of("threads: 1\n---\nthreads: 2\n").substr(0, 10), "a.yaml:2:1");
}

TEST(HostileYaml, Syntax) {
  EXPECT_EQ(message_of("train: [1, 2\nthreads: 3\n").substr(0, 7), "a.yaml:");
  EXPECT_EQ(message_of("train: 'abc\n").substr(0, 7), "a.yaml:");
  EXPECT_EQ(message_of("train:\n    seed: 1\n  clip: none\n").substr(0, 7), "a.yaml:");
  EXPECT_EQ(message_of("%YAML 9.9\n---\nthreads: 1\n").substr(0, 7), "a.yaml:");
  EXPECT_EQ(message_of("a: b: c\n").substr(0, 7), "a.yaml:");
  EXPECT_EQ(message_of("}\n").substr(0, 6), "a.yaml");
}

TEST(HostileYaml, LargeFilesAreRefusedAtOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.write("large.yaml", "threads: 1\n");
  std::filesystem::resize_file(path, 100'000'000);  // sparse
  const auto start = std::chrono::steady_clock::now();
  try {
    load_run_config(path);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("larger than 1048576 bytes"), std::string::npos) << e.message();
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1.0);
}

// A long text takes no more than a moment, whatever it is made of. The limit is far above what it takes (tenths of a
// second) so that a loaded machine or a sanitizer does not fail it; a reader with quadratic cost would.
TEST(HostileYaml, LongTextsAreReadInTime) {
  for (const std::string piece : {"k: 1\n", "- a\n", "a: {b: [c]}\n", "# x\n", "\"\\x41\"\n", "- - -\n"}) {
    const auto start = std::chrono::steady_clock::now();
    message_of(repeat(piece, kMaxYamlBytes / 4 / piece.size()));
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 60.0) << piece;
  }
}

TEST(HostileYaml, Files) {
  for (const char* path : {"/no/such/file.yaml", "/", "/dev/null"}) {
    try {
      load_run_config(path);
      ADD_FAILURE() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      EXPECT_NE(e.message().find(path), std::string::npos) << e.message();
    }
  }
}

}  // namespace
}  // namespace megaslide
