#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "io/contact_sheet.h"
#include "tests/video/video_testing.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

std::string file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A soft moving gradient with saturated colours.
Picture gradient(int64_t w, int64_t h, int i) {
  Picture p{w, h, std::vector<uint8_t>(static_cast<size_t>(w * h * 3))};
  for (int64_t y = 0; y < h; ++y)
    for (int64_t x = 0; x < w; ++x) {
      uint8_t* at = &p.rgb[static_cast<size_t>((y * w + x) * 3)];
      at[0] = static_cast<uint8_t>(20 + 200 * x / w);
      at[1] = static_cast<uint8_t>(20 + 200 * y / h);
      at[2] = static_cast<uint8_t>(127 + 100 * std::sin(0.05 * static_cast<double>(x + y) + 0.3 * i));
    }
  return p;
}

double psnr(const Picture& a, const Picture& b) {
  double sum = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) sum += (a.rgb[i] - b.rgb[i]) * (a.rgb[i] - b.rgb[i]);
  return 10 * std::log10(255.0 * 255.0 * static_cast<double>(a.rgb.size()) / std::max(sum, 1e-9));
}

void write(const std::string& path, int n, double fps, int64_t w = 96, int64_t h = 64) {
  const auto writer = create_video(path, w, h, fps);
  for (int i = 0; i < n; ++i) writer->write(gradient(w, h, i));
  writer->close();
}

struct Format {
  const char* extension;
  double least_psnr;  // libx264 and libvpx-vp9 give 42 dB and more, the GIF palette 27; less for other encoders
};

class Formats : public testing::TestWithParam<Format> {};

TEST_P(Formats, ComeBack) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  const std::string path = folder + "/a:b" + GetParam().extension;  // a colon is no protocol
  write(path, 17, 16);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1) << "no temporary is left";
  const WholeVideo v = read_all(path);
  ASSERT_EQ(v.pictures.size(), 17u);
  EXPECT_EQ(v.info.width, 96);
  EXPECT_EQ(v.info.height, 64);
  EXPECT_NEAR(v.end, 17 / 16.0, 0.011);
  for (int i = 0; i < 17; ++i) {
    EXPECT_GE(psnr(v.pictures[static_cast<size_t>(i)], gradient(96, 64, i)), GetParam().least_psnr) << i;
    EXPECT_NEAR(v.times[static_cast<size_t>(i)], i / 16.0, 0.011) << "GIF's clock has hundredths";
  }
  const std::string first = file_bytes(path);
  write(path, 17, 16);
  EXPECT_EQ(file_bytes(path), first) << "equal pictures give equal files";
}

INSTANTIATE_TEST_SUITE_P(Writer, Formats, testing::Values(Format{".mp4", 36}, Format{".webm", 36}, Format{".gif", 25}),
                         [](const auto& i) { return std::string(i.param.extension + 1); });

TEST(Writer, OddRatesSurvive) {
  const TemporaryFolder folder;
  const std::string path = folder / "v.mp4";
  for (const double fps : {23.976, 12.5, 29.97, 1.0, 60.0}) {
    write(path, 5, fps);
    EXPECT_NEAR(read_all(path).info.fps, fps, 0.001) << fps;
  }
}

TEST(Writer, PngFolder) {
  const TemporaryFolder folder;
  const std::string path = folder / "frames";
  write(path, 12, 16, 33, 17);
  const WholeVideo v = read_all(path);
  ASSERT_EQ(v.pictures.size(), 12u);
  EXPECT_FALSE(v.info.rate_known);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(v.pictures[static_cast<size_t>(i)].rgb, gradient(33, 17, i).rgb);
  write(path, 3, 16, 33, 17);  // replaces its own kind
  EXPECT_EQ(read_all(path).pictures.size(), 3u);
  std::ofstream(path + "/notes.txt") << "mine";
  EXPECT_THROW(create_video(path, 33, 17, 16), Error);
}

TEST(Writer, NothingIsLeftWithoutClose) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  for (const char* name : {"/v.mp4", "/v.gif", "/frames"}) {
    const auto writer = create_video(folder + name, 32, 32, 16);
    writer->write(gradient(32, 32, 0));
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(Writer, RefusesWhatCannotBe) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  EXPECT_THROW(create_video(folder + "/v.mp4", 33, 32, 16), Error);
  EXPECT_THROW(create_video(folder + "/v.xyz", 32, 32, 16), Error);
  EXPECT_THROW(create_video(folder + "/v.mp4", 32, 32, 0), Error);
  EXPECT_THROW(create_video(folder + "/none/v.mp4", 32, 32, 16), Error);
  EXPECT_THROW(create_video(folder + "/empty.mp4", 32, 32, 16)->close(), Error);
}

TEST(Png, RoundTripAndDamage) {
  const Picture p = gradient(31, 7, 2);
  const std::string bytes = encode_png(p);
  EXPECT_EQ(decode_png(bytes).rgb, p.rgb);
  EXPECT_THROW(decode_png("no PNG at all"), Error);
  // 16000x16000 pixels in the same few bytes: refused before memory is asked for.
  std::string huge = bytes;
  for (const size_t at : {16, 20}) huge.replace(at, 4, {'\0', '\0', '\x3E', '\x80'});
  const std::string ihdr = huge.substr(12, 17);
  const auto sum = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(ihdr.data()), 17));
  for (int i = 0; i < 4; ++i) huge[size_t{29} + static_cast<size_t>(i)] = static_cast<char>(sum >> (24 - 8 * i));
  expect_contains(error_of([&] { decode_png(huge); }), "16000x16000 pixels in");
  for (size_t n = 0; n < bytes.size() - 12; n += 17) EXPECT_THROW(decode_png(bytes.substr(0, n)), Error) << n;
}

TEST(Png, NaturalOrder) {
  EXPECT_TRUE(natural_less("frame_2", "frame_10"));
  EXPECT_FALSE(natural_less("frame_10", "frame_2"));
  EXPECT_TRUE(natural_less("frame_02", "frame_10"));
  EXPECT_TRUE(natural_less("a", "a1"));
  EXPECT_FALSE(natural_less("x", "x"));
  EXPECT_NE(natural_less("f1", "f01"), natural_less("f01", "f1"));
}

TEST(ContactSheet, PlacesPictures) {
  const auto plain = [](int64_t w, int64_t h, uint8_t v) { return Picture{w, h, std::vector<uint8_t>(static_cast<size_t>(w * h * 3), v)}; };
  std::vector<Picture> a, b;
  for (int i = 0; i < 5; ++i) a.push_back(plain(8, 6, static_cast<uint8_t>(100 + i)));
  b.push_back(plain(4, 4, 250));
  const Picture sheet = contact_sheet({a, b}, 3);
  EXPECT_EQ(sheet.width, 2 + 3 * 10);
  EXPECT_EQ(sheet.height, 2 + 2 * 8);
  const auto at = [&](int64_t x, int64_t y) { return static_cast<int>(sheet.rgb[static_cast<size_t>((y * sheet.width + x) * 3)]); };
  EXPECT_EQ(at(2, 2), 100);
  EXPECT_EQ(at(12, 2), 102);
  EXPECT_EQ(at(22, 7), 104);
  EXPECT_EQ(at(2, 10), 32);   // the small picture is centred
  EXPECT_EQ(at(4, 11), 250);
  EXPECT_EQ(at(0, 0), 32);
}

}  // namespace
}  // namespace megaslide
