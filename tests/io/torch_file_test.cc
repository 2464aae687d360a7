// PyTorch archives through the reader that runs nothing (libcore/io/torch_file.h, torch_pickle.h).
#include "io/torch_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/philox.h"
#include "io/safetensors.h"
#include "io/tensor_source.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/error_text.h"
#include "torch_archive.h"

namespace megaslide {
namespace {
namespace fs = std::filesystem;

using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

const std::string kFiles = MEGASLIDE_TEST_DATA "/checkpoints/torch/";

class TorchFileTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  // What is said about an archive with this pickle and these storages.
  std::string said(const std::string& pickle, const std::vector<std::string>& storages = {std::string(16, 'a')}) {
    write_bytes(folder_ / "x.pth", archive_of(pickle, storages));
    return error_of([&] { read_all(folder_ / "x.pth"); });
  }
  static void read_all(const std::string& path) {
    const TorchFile file = TorchFile::open(path);
    for (const TorchTensor& t : file.tensors()) file.stream(t, [](std::span<const std::byte>) {});
  }
};

TEST_F(TorchFileTest, TorchsOwnFilesHaveTheirValues) {
  const SafetensorsFile expected = SafetensorsFile::open(kFiles + "kinds.safetensors");
  for (const char* name : {"kinds.pth", "protocol4.pth", "nested.pth"}) {
    SCOPED_TRACE(name);
    const TensorSource source = TensorSource::open(kFiles + name);
    EXPECT_FALSE(source.is_safetensors());
    ASSERT_EQ(source.tensors().size(), expected.tensors().size());
    for (const TensorInfo& t : expected.tensors()) {
      SCOPED_TRACE(t.name);
      ASSERT_TRUE(source.find(t.name));
      EXPECT_EQ(source.find(t.name)->dtype, t.dtype);
      EXPECT_EQ(source.find(t.name)->shape, t.shape);
      const HostTensor got = source.read(t.name);
      const TensorView want = expected.view(t);
      ASSERT_EQ(got.bytes(), want.bytes());
      EXPECT_TRUE(std::equal(got.data(), got.data() + got.bytes(), want.data));
    }
  }
}

TEST_F(TorchFileTest, OtherFilesOfTorchAreNamed) {
  expect_contains(error_of([&] { TensorSource::open(kFiles + "module.pth"); }), "data.pkl byte 2: global torch.nn.modules.linear.Linear: not a tensor; nothing was run");
  expect_contains(error_of([&] { TensorSource::open(kFiles + "script.pth"); }), "a TorchScript module, which holds a program");
  const std::string legacy = error_of([&] { TensorSource::open(kFiles + "legacy.pth"); });
  expect_contains(legacy, "a bare Python pickle, as PyTorch wrote it before version 1.6");
  expect_contains(legacy, "torch.save(torch.load(FILE, weights_only=True)");
  std::string tar(512, '\0');
  tar.replace(257, 5, "ustar");
  write_bytes(folder_ / "old.pth", "storages" + tar.substr(8));
  expect_contains(error_of([&] { TensorSource::open(folder_ / "old.pth"); }), "a tar archive");
  write_bytes(folder_ / "other.pth", make_zip({{"a/readme", "hello"}}));
  expect_contains(error_of([&] { TensorSource::open(folder_ / "other.pth"); }), "a zip archive without a data.pkl");
}

// Everything that a pickle can be made to run: refused where it stands, by its name.
TEST_F(TorchFileTest, NothingIsRun) {
  using namespace pickle;
  const std::string command = text("touch " + (folder_ / "ran"));
  const std::string call = "(" + command + "tR";
  for (const auto& [pickle, name] : std::vector<std::pair<std::string, std::string>>{
           {whole(global("os", "system") + call), "data.pkl byte 2: global os.system: not a tensor; nothing was run"},
           {whole(global("posix", "system") + call), "global posix.system"},
           {whole(global("builtins", "eval") + call), "global builtins.eval"},
           {whole(global("builtins", "exec") + call), "global builtins.exec"},
           {whole(global("torch.storage", "_load_from_bytes") + call), "global torch.storage._load_from_bytes"},
           {whole(global("torch._utils", "_rebuild_device_tensor_from_numpy") + call), "global torch._utils"},
           {whole(global("__main__", "X") + call), "global __main__.X"},
           {whole(text("os") + text("system") + "\x93" + call), "byte 20: global os.system"},
           {whole("(S'x'\nios\nsystem\n"), "opcode STRING"},
           {whole("(" + command + "ios\nsystem\n"), "opcode INST"},
           {whole("(" + global("collections", "OrderedDict") + command + "o"), "opcode OBJ"},
           {whole(global("collections", "OrderedDict") + ")\x81"), "opcode NEWOBJ"},
           {whole(global("collections", "OrderedDict") + ")}\x92"), "opcode NEWOBJ_EX"},
           {whole("\x82\x01"), "opcode EXT1"},
           {whole(std::string("Pos\n")), "opcode PERSID"},
           {whole(text("x") + text("y") + "b"), "BUILD of a string"},
           {whole(global("collections", "OrderedDict") + ")R" + text("y") + "b"), "BUILD with a state that is no dictionary"},
           {whole(global("torch", "FloatStorage") + ")R"), "REDUCE of torch.FloatStorage"},
           {whole(text("x") + ")R"), "REDUCE of a string"},
           {whole("(" + text("module") + text("x") + text("y") + text("z") + integer(1) + "tQ"), "a persistent id of another kind"},
           {whole("0"), "opcode POP"}}) {
    SCOPED_TRACE(name);
    expect_contains(said(pickle), name);
    EXPECT_FALSE(fs::exists(folder_ / "ran"));
  }
}

TEST_F(TorchFileTest, TensorsMustLieInTheirStorage) {
  using namespace pickle;
  const auto with = [&](const std::string& t) { return said(whole(dict({{"w", t}}))); };
  const std::string four = storage("FloatStorage", "0", 4);
  EXPECT_EQ(with(tensor(four, 0, {2, 2}, {2, 1})), "no error");
  EXPECT_EQ(with(tensor(four, 0, {2, 2}, {1, 2})), "no error");
  EXPECT_EQ(with(tensor(four, 3, {}, {})), "no error");
  EXPECT_EQ(with(tensor(four, 9, {0, 2}, {1, 1})), "no error");
  expect_contains(with(tensor(four, 1, {2, 2}, {2, 1})), "reaches element 4 of storage 0, which has 4");
  expect_contains(with(tensor(four, 0, {2, 2}, {3, 1})), "reaches element 4");
  expect_contains(with(tensor(four, 4, {}, {})), "reaches element 4");
  expect_contains(with(tensor(four, 0, {8}, {0})), "expanded tensor");
  expect_contains(with(tensor(four, 0, {int64_t{1} << 40}, {0})), ".contiguous()");
  expect_contains(with(tensor(four, 0, {2, 2}, {int64_t{1} << 62, int64_t{1} << 62})), "overflows 64 bits");
  expect_contains(with(tensor(four, 0, {int64_t{1} << 32, int64_t{1} << 32}, {0, 0})), "overflows 64 bits");
  expect_contains(with(tensor(four, INT64_MAX, {2}, {1})), "overflows 64 bits");
  expect_contains(with(tensor(four, 0, {2, -2}, {2, 1})), "integers >= 0");
  expect_contains(with(tensor(four, -1, {2}, {1})), "no integer >= 0");
  expect_contains(with(tensor(four, 0, {2, 2}, {1})), "2 sizes and 1 strides");
  expect_contains(with(tensor(storage("FloatStorage", "0", 8), 0, {8}, {1})), "its storage data/0 has 16 bytes, 32 were expected");
  expect_contains(with(tensor(storage("FloatStorage", "7", 4), 0, {4}, {1})), "the archive has no entry data/7");
  expect_contains(with(tensor(storage("FloatStorage", "../../x", 4), 0, {4}, {1})), "storage key \"../../x\" is no number");
  expect_contains(with(tensor(storage("FloatStorage", "0", INT64_MAX), 0, {4}, {1})), "overflows");
  expect_contains(with(tensor(storage("QInt8Storage", "0", 4), 0, {4}, {1})), "global torch.QInt8Storage");
  expect_contains(said(whole(dict({{"a", tensor(four, 0, {4}, {1})}, {"b", tensor(storage("FloatStorage", "0", 3), 0, {3}, {1})}}))), "storage 0 is named with 12 bytes here and 16 before");
}

TEST_F(TorchFileTest, PicklesThatAreNone) {
  using namespace pickle;
  expect_contains(said(""), "cut short");
  expect_contains(said("\x80\x02"), "the pickle has no end");
  expect_contains(said("\x80\x09."), "pickle protocol 9");
  expect_contains(said(whole("")), "ends with 0 values");
  expect_contains(said(whole("NN")), "ends with 2 values");
  expect_contains(said(whole("N")), "it holds None, not a dictionary of tensors");
  expect_contains(said(whole("a")), "the stack is empty");
  expect_contains(said(whole("t")), "no mark");
  expect_contains(said(whole("h\x05")), "memo number 5 was never stored");
  expect_contains(said(whole("}(" + text("a") + "u")), "key without its value");
  expect_contains(said(whole(std::string("\xff"))), "0xff is no opcode");
  expect_contains(said(whole("X\xff\xff\xff\x7f")), "at most 65536");
  expect_contains(said(whole("\x8a\x09" + std::string(9, 'x'))), "an integer of 9 bytes");
  expect_contains(said(whole(std::string(1000, '('))), "nested deeper");
  const std::string four = storage("FloatStorage", "0", 4), t = tensor(four, 0, {4}, {1});
  expect_contains(said(whole("}(" + text("a") + t + text("a") + t + "u")), "tensor \"a\" is there twice");
  // A dictionary that holds itself, and small ones that stand for 8^12 tensors by sharing.
  expect_contains(said(whole("}q\x01(" + text("a") + t + text("b") + "h\x01u")), "nested deeper than 16");
  std::string nest = "}(" + text("t") + t + "u";
  for (char i = 0; i < 12; ++i) {
    nest = "}(" + text("a") + nest + "q" + i;
    for (const char* name : {"b", "c", "d", "e", "f", "g", "h"}) nest += text(name) + "h" + i;
    nest += "u";
  }
  expect_contains(said(whole(nest)), "more tensors than any checkpoint has");
  // Many values from few bytes each stay bounded.
  expect_contains(said(whole(std::string(3'000'000, 'N'))), "more values than any checkpoint has");
  std::string keys = "}(" + text(std::string(60000, 'k')) + "q\x01" + t + "q\x02";
  for (int i = 0; i < 20000; ++i) keys += "h\x01h\x02";
  expect_contains(said(whole(keys + "u")), "names of more than 67108864 bytes in all");
  // A call's arguments are not copied: a million of them, a hundred thousand times, would take minutes.
  std::string calls = global("torch._utils", "_rebuild_parameter") + "q\x01" + "Nq\x02(" + t;
  for (int i = 0; i < 1'000'000; ++i) calls += "h\x02";
  calls += "tq\x03";
  for (int i = 0; i < 100'000; ++i) calls += "h\x01h\x03R";
  const auto start = std::chrono::steady_clock::now();
  expect_contains(said(whole(calls)), "ends with 100003 values");
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0);
  expect_contains(said(std::string(static_cast<size_t>(kMaxTorchPickleBytes) + 1, 'N')), "at most 16777216 are read");
}

TEST_F(TorchFileTest, ZipArchivesThatClaimTooMuch) {
  using namespace pickle;
  const std::string good = whole(dict({{"w", tensor(storage("FloatStorage", "0", 4), 0, {4}, {1})}}));
  const auto zip = [&](const std::vector<ZipEntry>& entries) {
    write_bytes(folder_ / "z.pth", make_zip(entries));
    return error_of([&] { read_all(folder_ / "z.pth"); });
  };
  const std::string data(16, 'a');
  EXPECT_EQ(zip({{"m/data.pkl", good}, {"m/data/0", data}}), "no error");
  EXPECT_EQ(zip({{"data.pkl", good}, {"data/0", data}, {"byteorder", "little"}}), "no error");
  expect_contains(zip({{"m/data.pkl", good}, {"m/data/0", data}, {"m/byteorder", "big"}}), "byte order is \"big\"");
  expect_contains(zip({{"m/data.pkl", good}, {"m/data/0", data}, {"n/data.pkl", good}}), "with several data.pkl");
  expect_contains(zip({{"m/data.pkl", good}, {"m/data/0", data}, {"m/data/0", data}}), "z.pth: ");
  expect_contains(zip({{"m/data.pkl", good}, {"m/data/0", data, 8, 4'000'000'000u}}), "is compressed (16 bytes that claim to be 4000000000)");
  expect_contains(zip({{"m/data.pkl", good, 8}, {"m/data/0", data}}), "is compressed");
  expect_contains(zip({{"m/data.pkl", good}, {"m/data/0", data, 0, 4'000'000'000u}}), "z.pth: ");
  // A byte of the data that the checksum does not agree with.
  std::string bytes = make_zip({{"m/data.pkl", good}, {"m/data/0", data}});
  bytes[bytes.find(data) + 3] ^= 1;
  write_bytes(folder_ / "z.pth", bytes);
  expect_contains(error_of([&] { read_all(folder_ / "z.pth"); }), "m/data/0\": CRC error");
}

TEST_F(TorchFileTest, CutShortAnywhere) {
  const std::string whole = read_file(kFiles + "linear.pth");
  write_bytes(folder_ / "cut.pth", whole);
  for (size_t n = whole.size(); n-- > 0;) {
    fs::resize_file(folder_ / "cut.pth", n);
    const std::string message = error_of([&] { TensorSource::open(folder_ / "cut.pth"); });
    ASSERT_NE(message, "no error") << n;
    ASSERT_NE(message.find("cut.pth"), std::string::npos) << message;
    ASSERT_NE(message.find("remedy: "), std::string::npos) << message;
  }
}

// Bytes changed at random: an Error or a file that reads, never anything else.
TEST_F(TorchFileTest, Mutants) {
  const Random random(11, RandomPurpose::kInit);
  int refused = 0;
  for (uint64_t k = 0; k < 400; ++k) {
    std::string bytes = read_file(kFiles + (k % 2 ? "kinds.pth" : "nested.pth"));
    // Every other one in the pickle, where most of what can go wrong is.
    const size_t pickle = bytes.find("\x80\x02"), from = k % 4 < 2 ? pickle : 0, size = k % 4 < 2 ? 1500 : bytes.size();
    for (uint64_t i = 0; i <= k % 5; ++i) {
      const auto at = from + static_cast<size_t>(random.uniform(k, 2 * i) * static_cast<double>(size));
      bytes[std::min(at, bytes.size() - 1)] = static_cast<char>(random.uniform(k, 2 * i + 1) * 256);
    }
    write_bytes(folder_ / "mutant.pth", bytes);
    const std::string message = error_of([&] {
      if (TensorSource::open(folder_ / "mutant.pth").is_safetensors()) throw Error("not an archive any more");
      read_all(folder_ / "mutant.pth");
    });
    refused += message != "no error";
  }
  // The archive's checksums find nearly every change; those in the headers' dates go unnoticed.
  EXPECT_GT(refused, 300);
  EXPECT_LT(refused, 400);
}

// Memory of this process in files and pages of its own, bytes.
int64_t resident() {
  int64_t total = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  return pages * 4096;
}

// Half a GiB in one tensor, a hole on the disk: far less is resident while it streams, in both formats.
TEST_F(TorchFileTest, LargeTensorsStreamInBoundedMemory) {
  constexpr int64_t kBytes = int64_t{512} << 20, kAllowed = 64 << 20;
  const std::string header = fmt::format("{{\"w\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[0,{}]}}}}", kBytes / 4, kBytes);
  write_bytes(folder_ / "large.safetensors", little(header.size(), 8) + header);
  fs::resize_file(folder_ / "large.safetensors", 8 + header.size() + static_cast<uintmax_t>(kBytes));
  // The archive: one storage of a few bytes at the front, then the directory moved behind the hole.
  const std::string pickle = pickle::whole(pickle::dict({{"w", pickle::tensor(pickle::storage("FloatStorage", "0", kBytes / 4), 1, {kBytes / 4 - 1}, {1})}}));
  const std::string small = make_zip({{"m/data.pkl", pickle}, {"m/data/0", ""}});
  const size_t directory = small.find("PK\x01\x02");
  std::string front = small.substr(0, directory), back = small.substr(directory);
  const auto patch = [](std::string& text, size_t at, uint64_t value) { text.replace(at, 4, little(value, 4)); };
  const size_t local = front.rfind("PK\x03\x04"), central = back.rfind("PK\x01\x02"), end = back.rfind("PK\x05\x06");
  for (const size_t size : {18, 22}) patch(front, local + size, static_cast<uint64_t>(kBytes));
  for (const size_t size : {20, 24}) patch(back, central + size, static_cast<uint64_t>(kBytes));
  patch(back, end + 16, front.size() + static_cast<uint64_t>(kBytes));
  write_bytes(folder_ / "large.pth", front);
  fs::resize_file(folder_ / "large.pth", front.size() + static_cast<uintmax_t>(kBytes));
  std::ofstream(folder_ / "large.pth", std::ios::binary | std::ios::app) << back;
  for (const char* name : {"large.safetensors", "large.pth"}) {
    SCOPED_TRACE(name);
    const TensorSource source = TensorSource::open(folder_ / name);
    const int64_t before = resident();
    int64_t most = before, seen = 0;
    source.stream("w", [&](std::span<const std::byte> piece) {
      // Every page is touched.
      for (size_t i = 0; i < piece.size(); i += 1024) seen += piece[i] == std::byte{0};
      most = std::max(most, resident());
    });
    EXPECT_GE(seen, kBytes / 1024 - 1);
    EXPECT_LT(most - before, kAllowed);
  }
}

TEST_F(TorchFileTest, ShardsWithAnIndex) {
  const HostTensor a(DType::kF32, {2, 3}), b(DType::kF32, {4});
  write_torch(folder_ / "pytorch_model-00001-of-00002.bin", {{"a", a.view()}});
  write_torch(folder_ / "pytorch_model-00002-of-00002.bin", {{"b", b.view()}});
  expect_contains(error_of([&] { TensorSource::open(folder_.path()); }), "their index (*.bin.index.json) is missing");
  const auto index = [&](const std::string& second) {
    write_bytes(folder_ / "pytorch_model.bin.index.json",
                "{\"weight_map\": {\"a\": \"pytorch_model-00001-of-00002.bin\", \"b\": \"" + second + "\"}}");
  };
  index("pytorch_model-00002-of-00002.bin");
  const TensorSource source = TensorSource::open(folder_.path());
  EXPECT_EQ(source.tensors().size(), 2u);
  EXPECT_EQ(source.find("b")->shape, (Shape{4}));
  EXPECT_EQ(source.files().size(), 2u);
  index("pytorch_model-00001-of-00002.bin");
  expect_contains(error_of([&] { TensorSource::open(folder_.path()); }), "which does not hold it");
  index("../x.bin");
  expect_contains(error_of([&] { TensorSource::open(folder_.path()); }), "plain file name");
  index("none.bin");
  expect_contains(error_of([&] { TensorSource::open(folder_.path()); }), "the shard none.bin is missing");
}

}  // namespace
}  // namespace megaslide
