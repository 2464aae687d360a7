#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/mount.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/sha256.h"
#include "io/model_directory.h"
#include "io/safetensors.h"
#include "io/wan_names.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {
namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

HostTensor counting(DType dtype, Shape shape) {
  HostTensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.bytes(); ++i) t.data()[i] = static_cast<std::byte>(i * 7 + 1);
  return t;
}

TEST(SafetensorsWriter, EveryTypeRoundTripsInTheFormatsOrder) {
  TemporaryFolder folder;
  std::vector<HostTensor> data;
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) data.push_back(counting(static_cast<DType>(i), {2, 4}));
  data.push_back(counting(DType::kF32, {}));
  data.push_back(counting(DType::kBF16, {3, 0, 2}));
  for (size_t i = 0; i < data.size(); ++i) tensors.emplace_back("t\"\n\\é" + std::to_string(i), data[i].view());
  write_safetensors(folder / "x", tensors, {{"format", "pt"}, {"note", "a \"quote\"\x01"}});
  const auto file = SafetensorsFile::open(folder / "x");
  EXPECT_EQ(file.metadata().at("note"), "a \"quote\"\x01");
  EXPECT_EQ(file.header_bytes() % 8, 0);
  ASSERT_EQ(file.tensors().size(), data.size());
  for (size_t i = 0; i < data.size(); ++i) {
    const TensorView v = file.view(tensors[i].first);
    EXPECT_EQ(v.dtype, data[i].dtype());
    EXPECT_EQ(v.shape, data[i].shape());
    EXPECT_EQ(std::memcmp(v.data, data[i].data(), static_cast<size_t>(data[i].bytes())), 0);
  }
  for (size_t i = 1; i < file.tensors().size(); ++i) {
    const auto &a = file.tensors()[i - 1], &b = file.tensors()[i];
    if (a.end > a.begin && b.end > b.begin) {
      EXPECT_TRUE(a.dtype > b.dtype || (a.dtype == b.dtype && a.name < b.name)) << a.name << " before " << b.name;
    }
  }
}

TEST(SafetensorsWriter, HashSizeAndAlignmentAreTheFiles) {
  TemporaryFolder folder;
  const auto t = counting(DType::kF32, {100});
  for (const int64_t alignment : {8, 4096}) {
    SafetensorsWriter w(folder / "x", {{"a", DType::kF32, {100}}}, {}, alignment);
    w.write({t.data(), 123});
    w.write({t.data() + 123, 277});
    const auto result = w.finish();
    EXPECT_EQ(result.sha256, sha256_file(folder / "x"));
    EXPECT_EQ(result.bytes, static_cast<int64_t>(fs::file_size(folder / "x")));
    const auto file = SafetensorsFile::open(folder / "x");
    EXPECT_EQ(file.header_bytes() % alignment, 0);
    EXPECT_TRUE(file.metadata().empty());
    EXPECT_EQ(std::memcmp(file.view("a").data, t.data(), 400), 0);
  }
}

TEST(SafetensorsFile, MissingTensorNamesTheNearest) {
  TemporaryFolder folder;
  const auto t = counting(DType::kF32, {1});
  write_safetensors(folder / "x", {{"blocks.0.norm2.weight", t.view()}});
  const auto file = SafetensorsFile::open(folder / "x");
  try {
    file.view("blocks.0.norm2.wieght");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("did you mean \"blocks.0.norm2.weight\"?"), std::string::npos) << e.message();
  }
}

TEST(SafetensorsFile, AFifoIsRefusedWithoutWaitingForItsWriter) {
  TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  try {
    SafetensorsFile::open(folder / "pipe");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("pipe: not a regular file"), std::string::npos) << e.message();
  }
}

TEST(SafetensorsFile, StaysReadableAfterItsNameIsGone) {
  TemporaryFolder folder;
  const auto t = counting(DType::kF32, {5000});
  write_safetensors(folder / "x", {{"a", t.view()}});
  TensorView view;
  SafetensorsFile copy = SafetensorsFile::open(folder / "x");
  {
    const auto file = SafetensorsFile::open(folder / "x");
    copy = file;
    view = file.view("a");
  }
  fs::remove(folder / "x");
  EXPECT_EQ(std::memcmp(view.data, t.data(), 20000), 0);
}

TEST(SafetensorsSource, FoldersNeedOneClearChoice) {
  TemporaryFolder folder;
  const auto t = counting(DType::kF32, {1});
  write_safetensors(folder / "a-00001-of-00002.safetensors", {{"a", t.view()}});
  EXPECT_NO_THROW(SafetensorsSource::open(folder.path()));
  write_safetensors(folder / "a-00002-of-00002.safetensors", {{"b", t.view()}});
  try {
    SafetensorsSource::open(folder.path());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.remedy().find("index"), std::string::npos) << e.what();
  }
  write_safetensors(folder / "model.safetensors", {{"c", t.view()}});
  EXPECT_TRUE(SafetensorsSource::open(folder.path()).tensors().count("c"));
  write_safetensors(folder / "diffusion_pytorch_model.safetensors", {{"d", t.view()}});
  EXPECT_TRUE(SafetensorsSource::open(folder.path()).tensors().count("d"));
}

// A writer that runs out of disk leaves the directory that was there whole, and nothing half-written.
TEST(ModelDirectoryWriter, AFullDiskLeavesThePreviousOneWhole) {
  TemporaryFolder folder;
  fs::create_directory(folder / "disk");
  if (mount("none", (folder / "disk").c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "no permission to mount a tmpfs";
  ModelConfig c;
  c.dim = 16, c.heads = 2, c.ffn_dim = 16, c.layers = 1, c.text_dim = 16, c.freq_dim = 16;
  c.attention.dsa.groups = 2;
  const auto write = [&](float value, int64_t expected, int64_t ballast) {
    ModelDirectoryWriter writer(folder / "disk/m", c, true, expected);
    for (int64_t part = -1; part <= 1; ++part) {
      std::vector<SafetensorsEntry> entries;
      for (const WanTensor& t : wan_tensors(c, part)) entries.push_back({t.name, DType::kF32, t.shape});
      const std::string name = part < 0 ? kEmbedFile : part == 1 ? kHeadFile : layer_file_name(0);
      writer.write_file(name, entries, [&](size_t i, const ModelDirectoryWriter::Sink& sink) {
        const std::vector<float> values(static_cast<size_t>(element_count(entries[i].shape)), value);
        sink(std::as_bytes(std::span(values)));
      });
    }
    const std::vector<std::byte> piece(1000);
    if (ballast) writer.write_file("big.safetensors", {{"x", DType::kU8, {ballast}}}, [&](size_t, const ModelDirectoryWriter::Sink& sink) {
      for (int64_t at = 0; at < ballast; at += 1000) sink(piece);
    });
    writer.commit();
  };
  write(1, 0, 0);
  const auto message = [&](int64_t expected) -> std::string {
    try {
      write(2, expected, 2'000'000);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const std::string full = message(0), refused = message(2'100'000);
  EXPECT_NE(full.find("No space left on device"), std::string::npos) << full;
  EXPECT_NE(full.find("MB more needed"), std::string::npos) << full;
  EXPECT_NE(refused.find("needs 2.10 MB (2100000 bytes)"), std::string::npos) << refused;
  const auto m = ModelDirectory::open(folder / "disk/m");
  ThreadPool pool(1);
  EXPECT_TRUE(m.verify(pool).empty());
  float value;
  std::memcpy(&value, m.head().view("proj_out.bias").data, 4);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "disk"), fs::directory_iterator()), 1);
  umount((folder / "disk").c_str());
}

}  // namespace
}  // namespace megaslide
