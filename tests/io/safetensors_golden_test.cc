// The reader against files with known content and known verdicts (tests/data/safetensors).
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "io/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;
using nlohmann::json;

const std::string kData = MEGASLIDE_TEST_DATA "/safetensors";

json load(const std::string& name) { return json::parse(read_file(kData + "/" + name)); }

std::string fnv1a64(const TensorView& v) {
  uint64_t h = 0xcbf29ce484222325;
  for (int64_t i = 0; i < v.bytes(); ++i) h = (h ^ static_cast<uint8_t>(v.data[i])) * 0x100000001b3;
  return fmt::format("{:016x}", h);
}

std::string from_hex(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += 2) out += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return out;
}

// Counts warnings while it lives.
struct Warnings {
  Warnings() {
    previous = set_log_sink([this](LogLevel level, const std::string& text) {
      if (level == LogLevel::kWarning) texts.push_back(text);
    });
  }
  ~Warnings() { set_log_sink(previous); }
  std::vector<std::string> texts;
  LogSink previous;
};

// What each class of rejection says.
const std::map<std::string, std::string> kPhrases = {
    {"header-too-small", "too short for the 8-byte header length"},
    {"header-too-large", "is larger than the format's"},
    {"header-length", "would end past the file's"},
    {"json", "not valid JSON"},
    {"schema", "expected|is missing|data_offsets"},
    {"duplicate-key", "duplicate key"},
    {"dtype", "dtype"},
    {"overflow", "overflow"},
    {"offsets", "was expected|lies after the end"},
    {"file-size", "bytes of tensor data, the file holds"},
    {"size", "bytes, data_offsets"},
    {"misaligned", "do not fill whole bytes"},
    {"metadata", "__metadata__"},
    {"utf8", "UTF-8"},
};

void expect_verdict(const std::string& path, const std::string& name, const std::string& verdict, const std::string& kind) {
  SCOPED_TRACE(name);
  Warnings warnings;
  std::string message;
  try {
    SafetensorsFile::open(path);
  } catch (const Error& e) {
    message = e.what();
    EXPECT_FALSE(e.remedy().empty()) << message;
  }
  if (verdict == "reject") {
    ASSERT_FALSE(message.empty()) << "accepted";
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_EQ(message.find_first_of(std::string_view("\0\x1b\x07", 3)), std::string::npos) << "unsafe to print";
    bool found = kind.empty();
    std::stringstream phrases(kind.empty() ? "" : kPhrases.at(kind));
    for (std::string p; std::getline(phrases, p, '|');) found |= message.find(p) != std::string::npos;
    EXPECT_TRUE(found) << "expected an error of class " << kind << ", got: " << message;
    return;
  }
  EXPECT_EQ(message, "");
  EXPECT_EQ(warnings.texts.size(), verdict == "accept-with-warning" ? 1u : 0u);
  for (const auto& w : warnings.texts) EXPECT_EQ(w.find_first_of(std::string_view("\0\x1b", 2)), std::string::npos);
}

TEST(SafetensorsGolden, ValidFilesHaveTheirContent) {
  const json contents = load("valid/contents.json");
  int tensors = 0;
  for (const auto& [name, c] : contents.items()) {
    SCOPED_TRACE(name);
    Warnings warnings;
    const auto file = SafetensorsFile::open(kData + "/valid/" + name + ".safetensors");
    EXPECT_TRUE(warnings.texts.empty());
    EXPECT_EQ(file.header_bytes(), c["header_bytes"].get<int64_t>() + 8);
    std::map<std::string, std::string> metadata;
    if (c["metadata"].is_object()) metadata = c["metadata"].get<std::map<std::string, std::string>>();
    EXPECT_EQ(file.metadata(), metadata);
    ASSERT_EQ(file.tensors().size(), c["tensors"].size());
    for (const auto& t : c["tensors"]) {
      const TensorInfo* info = file.find(t["name"].get<std::string>());
      ASSERT_TRUE(info) << t["name"];
      EXPECT_EQ(dtype_name(info->dtype), t["dtype"].get<std::string>());
      EXPECT_EQ(info->shape, t["shape"].get<Shape>());
      EXPECT_EQ(file.header_bytes() + info->begin, t["file_offset"].get<int64_t>());
      EXPECT_EQ(info->end - info->begin, t["bytes"].get<int64_t>());
      EXPECT_EQ(fnv1a64(file.view(*info)), t["fnv1a64"].get<std::string>());
      file.drop_pages(*info);
      EXPECT_EQ(fnv1a64(file.view(*info)), t["fnv1a64"].get<std::string>()) << "after dropping its pages";
      ++tensors;
    }
    for (size_t i = 1; i < file.tensors().size(); ++i) EXPECT_EQ(file.tensors()[i].begin, file.tensors()[i - 1].end);
  }
  EXPECT_GT(tensors, 3000);
}

TEST(SafetensorsGolden, HostileFiles) {
  int n = 0;
  const json verdicts = load("hostile/verdicts.json");
  for (const auto& [name, c] : verdicts["cases"].items()) {
    std::string kind = c["ours_kind"].is_string() ? c["ours_kind"].get<std::string>() : "";
    // An array is refused where an object must be, before its depth matters; json_cursor_test covers the depth limit.
    if (name.starts_with("deep_nesting")) kind = "schema";
    expect_verdict(kData + "/hostile/" + name + ".safetensors", name, c["ours"].get<std::string>(), kind);
    ++n;
  }
  EXPECT_EQ(n, 81);
}

TEST(SafetensorsGolden, Mutants) {
  const json all = load("mutants.json");
  TemporaryFolder folder;
  const std::string path = folder / "m.safetensors";
  int accepted = 0;
  for (const auto& m : all["mutants"]) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << from_hex(m["hex"].get<std::string>());
    // Which class comes first where several rules are broken is a matter of order: the verdict is what counts.
    expect_verdict(path, "mutant " + std::to_string(m["id"].get<int>()), m["ours"].get<std::string>(), "");
    accepted += m["ours"] == "accept";
  }
  EXPECT_EQ(all["mutants"].size(), 400u);
  EXPECT_EQ(accepted, 19);
}

TEST(SafetensorsGolden, Sharded) {
  const json verdicts = load("sharded/verdicts.json");
  for (const auto& [name, c] : verdicts["cases"].items()) {
    SCOPED_TRACE(name);
    const std::string verdict = c["ours"].get<std::string>();
    for (const std::string& path : {kData + "/sharded/" + name, kData + "/sharded/" + name + "/model.safetensors.index.json"}) {
      Warnings warnings;
      try {
        const auto source = SafetensorsSource::open(path);
        EXPECT_NE(verdict, "reject");
        EXPECT_EQ(source.warnings.size(), verdict == "accept-with-warning" ? 1u : 0u);
        EXPECT_EQ(warnings.texts, source.warnings);
        EXPECT_EQ(source.tensors().size(), verdicts["tensors"].size());
        for (const auto& [tensor, t] : verdicts["tensors"].items()) {
          const TensorView v = source.view(tensor);
          EXPECT_EQ(v.shape, t["shape"].get<Shape>());
          const std::string bytes = from_hex(t["hex"].get<std::string>());
          ASSERT_EQ(static_cast<size_t>(v.bytes()), bytes.size());
          EXPECT_EQ(std::memcmp(v.data, bytes.data(), bytes.size()), 0) << tensor;
        }
      } catch (const Error& e) {
        EXPECT_EQ(verdict, "reject") << e.what();
        EXPECT_NE(std::string(e.what()).find("sharded/" + name), std::string::npos) << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace megaslide
