#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "io/video_tone_map.h"
#include "tests/video/video_testing.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

using testing_support::TemporaryFolder;

std::string message_of(const std::string& path) {
  try {
    read_all(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::array<int, 3> pixel(const Picture& p, int64_t x, int64_t y) {
  const uint8_t* at = &p.rgb[static_cast<size_t>((y * p.width + x) * 3)];
  return {at[0], at[1], at[2]};
}

bool near(std::array<int, 3> a, std::array<int, 3> b, int tolerance) {
  for (size_t k = 0; k < 3; ++k)
    if (std::abs(a[k] - b[k]) > tolerance) return false;
  return true;
}

TEST(Reader, TurnsRotatedVideo) {
  const WholeVideo v = read_all(test_data("cases/video/rot90.mp4"));
  EXPECT_EQ(v.pictures.size(), 25u);
  EXPECT_EQ(v.info.width, 120);
  EXPECT_EQ(v.info.height, 160);
  EXPECT_EQ(v.info.rotation, 90);
  const Picture& p = v.pictures[0];
  // Corners: flat patches, so that 4:2:0 and the encoder change them by less than 40.
  EXPECT_TRUE(near(pixel(p, 5, 5), {30, 30, 220}, 40)) << "top left is blue";
  EXPECT_TRUE(near(pixel(p, 114, 5), {220, 30, 30}, 40)) << "top right is red";
  EXPECT_TRUE(near(pixel(p, 5, 154), {220, 200, 30}, 40)) << "bottom left is yellow";
  EXPECT_TRUE(near(pixel(p, 114, 154), {30, 200, 30}, 40)) << "bottom right is green";
}

TEST(Reader, KeepsTheTimesOfVariableRates) {
  const WholeVideo v = read_all(test_data("cases/video/vfr.mp4"));
  EXPECT_EQ(stamps(v.pictures), range(0, 45));
  EXPECT_NEAR(v.times[30], 1.0, 1e-3);
  EXPECT_NEAR(v.times[44], 2.4, 1e-3);
  EXPECT_NEAR(v.end, 2.4333, 1e-3);
}

TEST(Reader, RespectsEditLists) {
  const WholeVideo v = read_all(test_data("cases/video/editlist.mp4"));
  EXPECT_EQ(stamps(v.pictures), range(5, 25));
  EXPECT_EQ(v.times[0], 0);
}

TEST(Reader, PresentationOrder) {
  EXPECT_EQ(stamps(read_all(test_data("cases/video/bpyramid.mp4")).pictures), range(0, 49));
  const WholeVideo avi = read_all(test_data("cases/video/bframes.avi"));
  EXPECT_EQ(stamps(avi.pictures), range(0, 30));
  EXPECT_NEAR(avi.times[29], 29 / 25.0, 1e-6);
  EXPECT_EQ(avi.info.declared_frames, 1000000);
}

TEST(Reader, OddSizesHaveNoGreenEdge) {
  const WholeVideo v = read_all(test_data("cases/video/odd.webm"));
  ASSERT_EQ(v.pictures.size(), 17u);
  EXPECT_EQ(v.info.width, 163);
  EXPECT_EQ(v.info.height, 121);
  const Picture& p = v.pictures[8];
  // The last column and row continue their neighbours: the pictures are smooth there but for codec noise (< 24).
  for (int64_t y = 30; y < 90; ++y) EXPECT_TRUE(near(pixel(p, 162, y), pixel(p, 160, y), 24)) << y;
  for (int64_t x = 30; x < 130; ++x) EXPECT_TRUE(near(pixel(p, x, 120), pixel(p, x, 118), 24)) << x;
}

TEST(Reader, ColourFollowsTheTags) {
  const std::array<std::array<int, 3>, 6> kWanted = {{{0, 0, 0}, {255, 255, 255}, {128, 128, 128}, {200, 20, 20}, {20, 180, 20}, {20, 20, 200}}};
  for (const char* name : {"colour-full709", "colour-limited709", "colour-limited601"}) {
    const WholeVideo v = read_all(test_data(std::string("cases/video/") + name + ".mp4"));
    const Picture& p = v.pictures.at(0);
    for (size_t k = 0; k < 6; ++k) {
      const int64_t x = static_cast<int64_t>(k) * p.width / 6 + p.width / 12;
      const auto rgb = pixel(p, x, p.height / 2);
      // 8-bit YUV steps of one give RGB steps of about two; 4 leaves room for two roundings.
      EXPECT_TRUE(near(rgb, kWanted[k], 4)) << name << " patch " << k << ": " << rgb[0] << " " << rgb[1] << " " << rgb[2];
    }
  }
}

// YCbCr made with one matrix and read with BT.601's, in units of full range.
std::array<int, 3> read_as_601(const std::array<int, 3>& rgb, double kr, double kb) {
  const double y = kr * rgb[0] + (1 - kr - kb) * rgb[1] + kb * rgb[2], cb = (rgb[2] - y) / (2 - 2 * kb), cr = (rgb[0] - y) / (2 - 2 * kr);
  const auto level = [](double v) { return static_cast<int>(std::lround(std::clamp(v, 0.0, 255.0))); };
  return {level(y + 1.402 * cr), level(y - (0.114 * 1.772 * cb + 0.299 * 1.402 * cr) / 0.587), level(y + 1.772 * cb)};
}

TEST(Reader, ColourIsBt601WhereAskedFor) {
  const std::array<std::array<int, 3>, 6> kPatches = {{{0, 0, 0}, {255, 255, 255}, {128, 128, 128}, {200, 20, 20}, {20, 180, 20}, {20, 20, 200}}};
  for (const bool tagged709 : {false, true}) {
    const auto reader = open_video(test_data(tagged709 ? "cases/video/colour-limited709.mp4" : "cases/video/colour-limited601.mp4"), VideoColour::kBt601);
    Picture p;
    double time = 0;
    ASSERT_TRUE(reader->next(p, time));
    for (size_t k = 0; k < 6; ++k) {
      const auto rgb = pixel(p, static_cast<int64_t>(k) * p.width / 6 + p.width / 12, p.height / 2);
      const auto wanted = tagged709 ? read_as_601(kPatches[k], 0.2126, 0.0722) : kPatches[k];
      EXPECT_TRUE(near(rgb, wanted, 4)) << tagged709 << " patch " << k << ": " << rgb[0] << " " << rgb[1] << " " << rgb[2] << ", wanted " << wanted[0];
    }
  }
}

// A copy of an mp4 whose first box of that name has other bytes at `offset` behind the name.
std::string patched(const TemporaryFolder& folder, const std::string& from, const std::string& box, size_t offset, const std::vector<int32_t>& values) {
  std::ifstream in(test_data(from), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  size_t at = bytes.find(box) + box.size() + offset;
  for (const int32_t v : values)
    for (int shift = 24; shift >= 0; shift -= 8) bytes[at++] = static_cast<char>(static_cast<uint32_t>(v) >> shift);
  return folder.write("patched.mp4", bytes);
}

TEST(Reader, AllEightOrientations) {
  const TemporaryFolder folder;
  const std::array<std::array<int, 3>, 4> colours = {{{220, 30, 30}, {30, 200, 30}, {30, 30, 220}, {220, 200, 30}}};  // stored at (-,-) (+,-) (-,+) (+,+)
  for (const auto& [a, b, c, d] : {std::array{1, 0, 0, 1}, {-1, 0, 0, 1}, {1, 0, 0, -1}, {-1, 0, 0, -1}, {0, 1, 1, 0}, {0, 1, -1, 0}, {0, -1, 1, 0}, {0, -1, -1, 0}}) {
    const int32_t one = 1 << 16;
    const std::string path = patched(folder, "cases/video/rot90.mp4", "tkhd", 40, {a * one, b * one, 0, c * one, d * one});
    const WholeVideo v = read_all(path);
    const bool turned = a == 0, mirrored = a * d - b * c < 0;
    ASSERT_EQ(v.info.width, turned ? 120 : 160);
    EXPECT_EQ(v.warnings.size(), mirrored ? 1u : 0u);
    for (int k = 0; k < 4; ++k) {
      const int x = k % 2 != 0 ? 1 : -1, y = k / 2 != 0 ? 1 : -1;
      const int64_t to_x = a * x + c * y > 0 ? v.info.width - 6 : 5, to_y = b * x + d * y > 0 ? v.info.height - 6 : 5;
      EXPECT_TRUE(near(pixel(v.pictures[0], to_x, to_y), colours[static_cast<size_t>(k)], 40)) << "matrix " << a << b << c << d << " corner " << k;
    }
  }
}

TEST(Reader, PicturesAreTurnedByTheirExifTag) {
  const TemporaryFolder folder;
  std::ifstream in(test_data("cases/mixed/still.jpg"), std::ios::binary);
  const std::string jpeg((std::istreambuf_iterator<char>(in)), {});
  const Picture plain = read_all(test_data("cases/mixed/still.jpg")).pictures.at(0);
  for (const auto& [tag, degrees] : {std::pair{'\1', 0}, {'\3', 180}, {'\6', 90}, {'\10', 270}}) {
    // APP1: Exif, a TIFF of one entry: Orientation, SHORT, 1.
    const std::string app = std::string("\xff\xe1\0\x22", 4) + std::string("Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", 25) + tag + std::string(6, '\0');
    const std::string path = folder.write("turned.jpg", jpeg.substr(0, 2) + app + jpeg.substr(2));
    const WholeVideo v = read_all(path);
    const bool turned = degrees % 180 != 0;
    EXPECT_EQ(v.info.rotation, degrees);
    ASSERT_EQ(v.info.width, turned ? plain.height : plain.width);
    const Picture& p = v.pictures.at(0);
    const int64_t x = degrees == 90 || degrees == 180 ? p.width - 1 : 0, y = degrees >= 180 ? p.height - 1 : 0;
    EXPECT_TRUE(near(pixel(p, x, y), pixel(plain, 0, 0), 0)) << "the stored top left, " << degrees << " degrees";
  }
}

TEST(Reader, PixelsBecomeSquare) {
  const TemporaryFolder folder;
  const auto shaped = [&](int32_t h, int32_t v) { return read_all(patched(folder, "clips/bunny-smiles.mp4", "pasp", 0, {h, v})); };
  const WholeVideo square = shaped(1, 1), wide = shaped(4, 3), tall = shaped(3, 4), absurd = shaped(1, 1000);
  const int64_t w = square.info.width, h = square.info.height;
  EXPECT_EQ(wide.info.width, std::lround(static_cast<double>(w) * 4 / 3));
  EXPECT_EQ(wide.info.height, h);
  EXPECT_EQ(tall.info.width, w);
  EXPECT_EQ(tall.info.height, std::lround(static_cast<double>(h) * 4 / 3));
  EXPECT_TRUE(square.warnings.empty());
  ASSERT_EQ(wide.warnings.size(), 1u);
  EXPECT_EQ(wide.warnings[0].find("pixels are 4:3: "), 0u) << wide.warnings[0];
  EXPECT_EQ(wide.pictures.size(), square.pictures.size());
  EXPECT_EQ(absurd.info.height, h);
  EXPECT_EQ(absurd.warnings.size(), 1u);
  // The same picture, stretched: means of the four quarters agree.
  for (int k = 0; k < 4; ++k) {
    const auto quarter = [&](const Picture& p) { return mean_green(p, k % 2 * (p.width / 2), k / 2 * (p.height / 2), p.width / 2, p.height / 2); };
    EXPECT_NEAR(quarter(wide.pictures[0]), quarter(square.pictures[0]), 2);
    EXPECT_NEAR(quarter(tall.pictures[0]), quarter(square.pictures[0]), 2);
  }
}

TEST(Reader, TenBitHdrIsToneMapped) {
  const WholeVideo v = read_all(test_data("cases/video/hdr10.mp4"));
  ASSERT_EQ(v.pictures.size(), 9u);
  EXPECT_EQ(v.info.transfer, "smpte2084");
  ASSERT_EQ(v.warnings.size(), 1u);
  EXPECT_EQ(v.warnings[0], "HDR (transfer smpte2084, BT.2020) is tone-mapped to SDR: 1000 cd/m2 (none is stated) down to 203");
  const Picture& p = v.pictures[0];
  const auto at = [&](int k) { return pixel(p, k * p.width / 6 + p.width / 12, p.height / 2); };
  EXPECT_LT(at(0)[1], at(2)[1]);
  EXPECT_LT(at(2)[1], at(1)[1]);
  EXPECT_GT(at(3)[0], at(3)[1] + 40);  // red stays red
  // The grey is PQ 128/255: 94 of 203 cd/m2, below the knee of 1000 cd/m2 where nothing is compressed; ten bits round by 0.1%.
  EXPECT_NEAR(at(2)[1], 255 * std::pow(pq_to_light(128 / 255.0) / 203, 1 / 2.4), 2);
  EXPECT_EQ(at(1)[1], 255) << "above the peak is white";
}

TEST(Reader, TruncatedFileGivesItsPicturesThenAnError) {
  const auto reader = open_video(test_data("cases/video/truncated.mp4"));
  EXPECT_EQ(reader->info().declared_frames, 48);
  std::vector<Picture> got;
  Picture p;
  double t = 0;
  std::string message;
  try {
    while (reader->next(p, t)) got.push_back(p);
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_GE(got.size(), 24u);
  EXPECT_LE(got.size(), 25u);
  got.resize(24);
  EXPECT_EQ(stamps(got), range(0, 24));
  EXPECT_NE(message.find("48 declared"), std::string::npos) << message;
}

TEST(Reader, IgnoresAttachedPictures) {
  const WholeVideo v = read_all(test_data("cases/video/cover-first.mp4"));
  EXPECT_EQ(stamps(v.pictures), range(0, 17));
  EXPECT_EQ(v.info.width, 160);
  EXPECT_NE(message_of(test_data("cases/video/music.mp4")).find("no video stream (only an attached picture)"), std::string::npos);
}

TEST(Reader, LengthsComeFromDecoding) {
  for (const char* name : {"live.webm", "fragmented.mp4"}) {
    const WholeVideo v = read_all(test_data(std::string("cases/video/") + name));
    EXPECT_EQ(stamps(v.pictures), range(0, 21)) << name;
    EXPECT_EQ(v.times[0], 0) << name;
    EXPECT_NEAR(v.end, 1.3125, 1.5e-3) << name;  // WebM's clock is in milliseconds
  }
}

TEST(Reader, JitterIsNoRate) {
  const WholeVideo v = read_all(test_data("cases/video/jitter.mkv"));
  EXPECT_EQ(v.pictures.size(), 30u);
  const double fps = 30 / v.end;
  EXPECT_GT(fps, 29);
  EXPECT_LT(fps, 31);
  for (size_t i = 1; i < v.times.size(); ++i) EXPECT_GT(v.times[i], v.times[i - 1]);
}

TEST(Reader, GifDelays) {
  const WholeVideo v = read_all(test_data("cases/video/delays.gif"));
  EXPECT_EQ(v.pictures.size(), 12u);
  EXPECT_NEAR(v.end, 1.5, 1e-6);
  const WholeVideo zero = read_all(test_data("cases/video/zero-delay.gif"));
  EXPECT_EQ(zero.pictures.size(), 12u);
  EXPECT_NEAR(zero.end, 1.2, 1e-6);
  EXPECT_TRUE(v.warnings.empty());
  ASSERT_EQ(zero.warnings.size(), 1u);
  EXPECT_NE(zero.warnings[0].find("0.1 s"), std::string::npos);
}

TEST(Reader, NamesWhatIsNoVideo) {
  const auto expect = [](const char* name, const char* part) {
    const std::string m = message_of(test_data(std::string("cases/bad-files/") + name));
    EXPECT_NE(m.find(part), std::string::npos) << m;
    EXPECT_NE(m.find(name), std::string::npos) << m;
  };
  expect("audio-only.mp4", "no video stream");
  expect("no-moov.mp4", "index (moov) is missing");
  expect("empty.mp4", "empty (0 bytes)");
  expect("web-page.mp4", "HTML");
  expect("lfs-pointer.mp4", "git lfs pull");
  expect("noise.mp4", "not a known format");
  EXPECT_EQ(read_all(test_data("cases/bad-files/good.mp4")).pictures.size(), 17u);
  EXPECT_NE(message_of(test_data("cases/video/animated.webp")).find("animated WebP"), std::string::npos);
  EXPECT_NE(message_of(test_data("cases/bad-files/good.txt")).find("text"), std::string::npos);
  EXPECT_NE(message_of(test_data("cases/video/none.mp4")).find("no such file"), std::string::npos);
  EXPECT_NE(message_of("/dev/null").find("not a regular file"), std::string::npos);
}

TEST(Reader, PlaylistsOpenNothingElse) {
  // An ffconcat or HLS list under a video's name would make libav read other files.
  const TemporaryFolder folder;
  const std::string path = folder.write("list.mp4", "ffconcat version 1.0\nfile '" + test_data("cases/video/bpyramid.mp4") + "'\n");
  EXPECT_NE(message_of(path).find("not a video: text"), std::string::npos);
}

TEST(Reader, ASmallFileDoesNotTakeGigabytes) {
  // A fragment's run of samples, none of which takes a byte: an index of 2 GiB.
  EXPECT_NE(message_of(test_data("fuzz/video/finding-samples-for-gigabytes")).find("more memory"), std::string::npos);
}

TEST(Reader, ColoursThatNoStandardNamesAreTheUsualOnes) {
  EXPECT_EQ(message_of(test_data("fuzz/video/finding-colours-of-no-standard")), "no error");
}

TEST(Reader, EveryPrefixOfAFileEndsCleanly) {
  std::ifstream in(test_data("cases/video/bpyramid.mp4"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  const TemporaryFolder folder;
  for (size_t n = 1; n < whole.size(); n += 397)
    EXPECT_NE(message_of(folder.write("prefix.mp4", whole.substr(0, n))), "no error") << n;
}

TEST(Reader, DamagedBytesEndCleanly) {
  std::ifstream in(test_data("cases/video/bpyramid.mp4"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  const TemporaryFolder folder;
  for (size_t k = 0; k < 60; ++k) {
    std::string bytes = whole;
    for (size_t j = 0; j < 8; ++j) bytes[(k * 7919 + j * 104729) % bytes.size()] ^= static_cast<char>(1 << (k % 8));
    message_of(folder.write("damaged.mp4", bytes));  // any answer will do, but an answer
  }
}

}  // namespace
}  // namespace megaslide
