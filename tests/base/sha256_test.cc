#include "base/sha256.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

// FIPS 180-4 examples.
TEST(Sha256, KnownVectors) {
  EXPECT_EQ(sha256_hex(std::string_view("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(std::string_view("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesEqualTheWholeAndHexDoesNotEndIt) {
  Sha256 s;
  s.update("a");
  const std::string a = s.hex();
  s.update("bc");
  EXPECT_EQ(a, sha256_hex(std::string_view("a")));
  EXPECT_EQ(s.hex(), sha256_hex(std::string_view("abc")));
}

TEST(Sha256, FileEqualsText) {
  const TemporaryFolder folder;
  const std::string text(3'000'000, 'x');
  const std::string path = folder.write("text", text);
  EXPECT_EQ(sha256_file(path), sha256_hex(std::string_view(text)));
  std::filesystem::remove(path);
  EXPECT_THROW(sha256_file(path), Error);
}

}  // namespace
}  // namespace megaslide
