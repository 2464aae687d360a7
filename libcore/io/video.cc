#include "io/video.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/video_module.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

std::string lower_extension(const std::string& path) {
  std::string e = fs::path(path).extension().string();
  for (char& c : e) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return e;
}

// What a file that libav should not even see is, from its first bytes; empty: let libav look.
struct Verdict {
  std::string what, remedy;
};

bool starts_with(const std::string& head, std::string_view prefix) { return head.compare(0, prefix.size(), prefix) == 0; }

bool is_plain_text(const std::string& head) {
  for (const char c : head) {
    const auto u = static_cast<unsigned char>(c);
    if (u == 0 || (u < 0x20 && u != '\t' && u != '\n' && u != '\r' && u != '\f')) return false;
  }
  return true;
}

Verdict judge_head(std::string head) {
  if (starts_with(head, "version https://git-lfs.github.com/"))
    return {"a Git LFS pointer, not the file itself: run `git lfs pull`", "run `git lfs pull` in its repository"};
  if (starts_with(head, "RIFF") && head.size() >= 12 && head.substr(8, 4) == "WEBP") {
    if (head.find("ANIM") != std::string::npos)
      return {"animated WebP, which libav cannot decode: convert it to PNG pictures in a folder (anim_dump)", "`anim_dump -folder OUT FILE` of Debian's package webp makes such a folder"};
    return {};
  }
  if (starts_with(head, "\xef\xbb\xbf")) head.erase(0, 3);
  if (!is_plain_text(head)) return {};
  std::string word;
  for (const char c : head) {
    if (word.size() >= 64) break;
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
      if (word.empty()) continue;
    }
    word += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (starts_with(word, "<!doctype html") || starts_with(word, "<html") || starts_with(word, "<head"))
    return {"not a video: HTML, a web page", "download the file itself; the server answered with a page"};
  return {"not a video: text", "check the path"};
}

Verdict judge_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw system_error("open", path, errno);
  struct stat st {};
  const bool known = ::fstat(fd, &st) == 0;
  std::string head(512, 0);
  const ssize_t n = known && S_ISREG(st.st_mode) ? ::read(fd, head.data(), head.size()) : 0;
  ::close(fd);
  if (known && !S_ISREG(st.st_mode)) return {"not a regular file", "give a video file or a folder of pictures"};
  if (n < 0) throw system_error("read", path, errno);
  if (n == 0) return {"empty (0 bytes)", "fetch the file again"};
  head.resize(static_cast<size_t>(n));
  return judge_head(std::move(head));
}

// Whether a GIF holds delays of zero, which libav shows for 0.1 s, as browsers do.
bool has_zero_delays(const std::string& path) {
  constexpr int64_t kMost = int64_t{64} << 20;
  const std::string bytes = read_file(path, kMost);
  const std::string extension("\x21\xf9\x04", 3);  // graphic control: flags, delay in 1/100 s, transparent index, 0
  for (size_t at = bytes.find(extension); at != std::string::npos && at + 8 <= bytes.size(); at = bytes.find(extension, at + 1))
    if (bytes[at + 4] == 0 && bytes[at + 5] == 0 && bytes[at + 7] == 0) return true;
  return false;
}

class ModuleReader final : public VideoReader {
 public:
  ModuleReader(const std::string& path, VideoColour colour) : path_(path), module_(video_module()) {
    ModuleError error;
    MsVideoInfo raw{};
    reader_ = module_.open(path.c_str(), colour == VideoColour::kBt601, &raw, error);
    if (reader_ == nullptr) throw Error(fmt::format("{}: {}", path, error.text), "convert the file with ffmpeg, or leave it out");
    info_.width = raw.width;
    info_.height = raw.height;
    info_.fps = raw.fps;
    info_.duration = raw.duration;
    info_.tick = raw.tick;
    info_.declared_frames = raw.declared_frames;
    info_.rotation = raw.rotation;
    info_.codec = raw.codec;
    info_.transfer = raw.transfer;
    std::error_code ignored;
    if (info_.codec == "gif" && fs::file_size(path, ignored) < (uintmax_t{64} << 20) && has_zero_delays(path))
      notes_.push_back("pictures without a delay are taken to last 0.1 s");
  }
  ModuleReader(const ModuleReader&) = delete;
  ModuleReader& operator=(const ModuleReader&) = delete;
  ~ModuleReader() override { module_.close(reader_); }
  const VideoInfo& info() const override { return info_; }

  bool next(Picture& picture, double& time) override {
    picture.width = info_.width;
    picture.height = info_.height;
    picture.rgb.resize(static_cast<size_t>(info_.width * info_.height * 3));
    ModuleError error;
    double length = 0;
    const int rc = module_.next(reader_, picture.rgb.data(), &time, &length, error);
    if (rc < 0) {
      const std::string declared = info_.declared_frames > 0 ? fmt::format(" of {} declared", info_.declared_frames) : "";
      throw Error(fmt::format("{}: {} after picture {}{}", path_, error.text, count_, declared),
                  "fetch the file again, or cut it before the damage");
    }
    if (rc == 0) return false;
    ++count_;
    time_ = time;
    length_ = length;
    return true;
  }

  double end_time() const override {
    if (length_ > 0) return time_ + length_;
    if (count_ > 1) return time_ + time_ / static_cast<double>(count_ - 1);  // the mean distance
    return info_.fps > 0 ? time_ + 1 / info_.fps : time_;
  }

  std::vector<std::string> warnings() const override {
    std::vector<std::string> out = notes_;
    for (std::string& n : lines_of(module_.warnings(reader_))) out.push_back(std::move(n));
    return out;
  }

 private:
  std::string path_;
  const MsVideoModule& module_;
  void* reader_ = nullptr;
  VideoInfo info_;
  std::vector<std::string> notes_;
  int64_t count_ = 0;
  double time_ = 0, length_ = 0;
};

// The rate as a fraction: whole rates, NTSC's n·1000/1001, else thousandths.
std::array<int, 2> rate_fraction(double fps) {
  const double whole = std::round(fps), ntsc = std::round(fps * 1.001);
  if (std::abs(fps - whole) < 1e-6) return {static_cast<int>(whole), 1};
  if (std::abs(fps - ntsc / 1.001) < 1e-3) return {static_cast<int>(ntsc) * 1000, 1001};
  const int num = std::max(static_cast<int>(std::lround(fps * 1000)), 1), common = std::gcd(num, 1000);
  return {num / common, 1000 / common};
}

class ModuleWriter final : public VideoWriter {
 public:
  ModuleWriter(const std::string& path, const std::string& format, int64_t width, int64_t height, double fps)
      : path_(path), temporary_(fmt::format("{}.tmp-{}", path, ::getpid())), width_(width), height_(height), module_(video_module()) {
    const auto rate = rate_fraction(fps);
    ModuleError error;
    writer_ = module_.create(temporary_.c_str(), format.c_str(), width, height, rate[0], rate[1], error);
    if (writer_ == nullptr) fail(error.text);
  }
  ModuleWriter(const ModuleWriter&) = delete;
  ModuleWriter& operator=(const ModuleWriter&) = delete;
  ~ModuleWriter() override { give_up(); }

  void write(const Picture& picture) override {
    MS_CHECK(picture.width == width_ && picture.height == height_ && picture.rgb.size() == static_cast<size_t>(width_ * height_ * 3));
    MS_CHECK(writer_ != nullptr, "written after close");
    ModuleError error;
    if (module_.write(writer_, picture.rgb.data(), error) != 0) fail(error.text);
    ++count_;
  }

  void close() override {
    if (writer_ == nullptr) return;
    if (count_ == 0) throw Error(path_ + ": a video needs at least one picture");
    ModuleError error;
    if (module_.finish(writer_, error) != 0) fail(error.text);
    module_.destroy(std::exchange(writer_, nullptr));
    const int fd = ::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::fsync(fd) != 0) throw system_error("fsync", temporary_, errno);
    ::close(fd);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw system_error("rename to", path_, errno);
    fsync_directory(parent_directory(path_));
  }

 private:
  [[noreturn]] void fail(const std::string& text) {
    give_up();
    throw Error(fmt::format("{}: {}", path_, text), "check the folder, the free space and the installed encoders (`ffmpeg -encoders`)");
  }
  void give_up() {
    if (writer_ == nullptr && !temporary_.empty()) {
      ::unlink(temporary_.c_str());  // harmless after the rename
      return;
    }
    module_.destroy(std::exchange(writer_, nullptr));
    ::unlink(temporary_.c_str());
  }
  std::string path_, temporary_;
  int64_t width_, height_, count_ = 0;
  const MsVideoModule& module_;
  void* writer_ = nullptr;
};

}  // namespace

bool is_video_file_name(const std::string& path) {
  static constexpr std::array<std::string_view, 14> kNames = {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif",
                                                               ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".ogv", ".3gp"};
  return std::find(kNames.begin(), kNames.end(), lower_extension(path)) != kNames.end();
}

bool is_image_file_name(const std::string& path) {
  static constexpr std::array<std::string_view, 5> kNames = {".png", ".jpg", ".jpeg", ".webp", ".bmp"};
  return std::find(kNames.begin(), kNames.end(), lower_extension(path)) != kNames.end();
}

bool natural_less(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      while (i < a.size() && a[i] == '0') ++i;
      while (j < b.size() && b[j] == '0') ++j;
      size_t p = i, q = j;
      while (p < a.size() && digit(a[p])) ++p;
      while (q < b.size() && digit(b[q])) ++q;
      if (p - i != q - j) return p - i < q - j;
      if (const int order = a.compare(i, p - i, b, j, q - j); order != 0) return order < 0;
      i = p;
      j = q;
    } else if (a[i] != b[j]) {
      return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
    } else {
      ++i;
      ++j;
    }
  }
  if ((a.size() - i) != (b.size() - j)) return a.size() - i < b.size() - j;
  return a < b;  // equal but for leading zeros
}

std::unique_ptr<VideoReader> open_video(const std::string& path, VideoColour colour) {
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (status.type() == fs::file_type::not_found) throw Error(path + ": no such file or folder", "check the path");
  if (fs::is_directory(status)) {
    auto pictures = frame_folder_pictures(path);
    if (pictures.empty()) throw Error(path + ": not a video: a folder without PNG or JPEG pictures", "give a video file or a folder of numbered pictures");
    return open_frame_folder(path, std::move(pictures));
  }
  if (const Verdict v = judge_file(path); !v.what.empty()) throw Error(path + ": " + v.what, v.remedy);
  if (is_image_file_name(path)) return open_frame_folder(path, {path});
  return std::make_unique<ModuleReader>(path, colour);
}

std::unique_ptr<VideoWriter> create_video(const std::string& path, int64_t width, int64_t height, double fps) {
  if (width < 1 || height < 1 || !(fps > 0 && fps <= 1000))
    throw usage_error(fmt::format("{}: cannot write {}x{} at {} frames a second", path, width, height, fps));
  const std::string extension = lower_extension(path);
  if (extension.empty() || path.back() == '/') return create_frame_folder(path, width, height);
  if (extension != ".mp4" && extension != ".webm" && extension != ".gif")
    throw usage_error(fmt::format("{}: unknown video format \"{}\"", path, extension), "use .mp4, .webm, .gif, or a folder name for PNG pictures");
  if (extension != ".gif" && (width % 2 != 0 || height % 2 != 0))
    throw usage_error(fmt::format("{}: {}x{} cannot be written as {}: width and height must be even", path, width, height, extension),
                      "choose an even size, or write .gif or PNG pictures");
  return std::make_unique<ModuleWriter>(path, extension.substr(1), width, height, fps);
}

}  // namespace megaslide
