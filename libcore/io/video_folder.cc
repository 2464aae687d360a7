// A folder of numbered pictures as a video, and a single picture as a video of one frame.
#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/video_module.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

bool is_png(const std::string& path) {
  const std::string e = fs::path(path).extension().string();
  return e == ".png" || e == ".PNG";
}

// `notes` gains what a person should know, each once; `turned` becomes the degrees by which the picture's own tag turned it.
Picture read_picture(const std::string& path, std::vector<std::string>& notes, int& turned) {
  if (is_png(path)) return read_png(path);
  ModuleError error;
  MsVideoInfo info{};
  const MsVideoModule& module = video_module();
  void* reader = module.open(path.c_str(), 0, &info, error);
  if (reader == nullptr) throw Error(fmt::format("{}: {}", path, error.text), "give PNG or JPEG pictures");
  Picture p{info.width, info.height, std::vector<uint8_t>(static_cast<size_t>(info.width * info.height * 3))};
  double time = 0, length = 0;
  const int rc = module.next(reader, p.rgb.data(), &time, &length, error);
  turned = info.rotation;
  for (const std::string& n : lines_of(module.warnings(reader)))
    if (std::find(notes.begin(), notes.end(), n) == notes.end()) notes.push_back(n);
  module.close(reader);
  if (rc != 1) throw Error(fmt::format("{}: {}", path, rc < 0 ? error.text : "holds no picture"), "fetch the file again");
  return p;
}

class FolderReader final : public VideoReader {
 public:
  FolderReader(std::string path, std::vector<std::string> pictures) : path_(std::move(path)), pictures_(std::move(pictures)) {
    first_ = read_picture(pictures_.front(), notes_, info_.rotation);
    info_.width = first_.width;
    info_.height = first_.height;
    info_.fps = kUnknownRate;
    info_.rate_known = false;
    info_.declared_frames = static_cast<int64_t>(pictures_.size());
    info_.duration = static_cast<double>(pictures_.size()) / kUnknownRate;
    info_.codec = is_png(pictures_.front()) ? "png" : "image";
  }
  const VideoInfo& info() const override { return info_; }
  bool next(Picture& picture, double& time) override {
    if (at_ == pictures_.size()) return false;
    int turned = 0;
    picture = at_ == 0 ? std::move(first_) : read_picture(pictures_[at_], notes_, turned);
    if (picture.width != info_.width || picture.height != info_.height)
      throw Error(fmt::format("{}: {}x{}, but the first picture is {}x{}", pictures_[at_], picture.width, picture.height, info_.width, info_.height),
                  "give the pictures of a folder one size");
    time = static_cast<double>(at_++) / kUnknownRate;
    return true;
  }
  double end_time() const override { return static_cast<double>(at_) / kUnknownRate; }
  std::vector<std::string> warnings() const override { return notes_; }

 private:
  std::string path_;
  std::vector<std::string> pictures_, notes_;
  Picture first_;
  VideoInfo info_;
  size_t at_ = 0;
};

class FolderWriter final : public VideoWriter {
 public:
  FolderWriter(const std::string& path, int64_t width, int64_t height)
      : width_(width), height_(height), folder_(checked(path), true) {}

  void write(const Picture& picture) override {
    MS_CHECK(picture.width == width_ && picture.height == height_);
    FileWriter file(folder_.file(fmt::format("frame_{:05}.png", count_++)));
    file.write(encode_png(picture));
    file.sync();
    file.close();
  }
  void close() override {
    if (count_ == 0) throw Error("a video needs at least one picture");
    folder_.commit();
  }

 private:
  // A folder is replaced only when it holds nothing but such pictures.
  static std::string checked(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    std::error_code failure;
    for (fs::directory_iterator it(path, failure), end; !failure && it != end; it.increment(failure)) {
      const std::string name = it->path().filename().string();
      if (name.compare(0, 6, "frame_") != 0 || it->path().extension() != ".png")
        throw Error(fmt::format("{}: the folder holds other files ({})", path, name), "choose a new folder name");
    }
    return path;
  }
  int64_t width_, height_, count_ = 0;
  AtomicDirectory folder_;
};

}  // namespace

std::vector<std::string> frame_folder_pictures(const std::string& path, size_t at_least) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator it(path, failure), end; !failure && it != end; it.increment(failure)) {
    const std::string name = it->path().filename().string();
    if (name[0] == '.') continue;
    if (it->is_directory(failure) || is_video_file_name(name)) return {};
    if (is_image_file_name(name)) names.push_back(name);
  }
  if (names.size() < at_least) return {};
  std::sort(names.begin(), names.end(), natural_less);
  for (std::string& n : names) n = (fs::path(path) / n).string();
  return names;
}

std::unique_ptr<VideoReader> open_frame_folder(const std::string& path, std::vector<std::string> pictures) {
  return std::make_unique<FolderReader>(path, std::move(pictures));
}
std::unique_ptr<VideoWriter> create_frame_folder(const std::string& path, int64_t width, int64_t height) {
  return std::make_unique<FolderWriter>(path, width, height);
}

}  // namespace megaslide
