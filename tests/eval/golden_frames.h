// Videos held in memory, for tests.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"
#include "io/video.h"

namespace megaslide {

class MemoryReader : public VideoReader {
 public:
  explicit MemoryReader(std::vector<Picture> frames, double fps = 8) : frames_(std::move(frames)) {
    if (!frames_.empty()) info_.width = frames_[0].width, info_.height = frames_[0].height;
    info_.fps = fps;
    info_.codec = "memory";
  }
  const VideoInfo& info() const override { return info_; }
  bool next(Picture& picture, double& time) override {
    if (fail_at >= 0 && at_ == static_cast<size_t>(fail_at)) throw Error("damaged packet");
    if (at_ == frames_.size()) return false;
    time = static_cast<double>(at_) / info_.fps;
    picture = frames_[at_++];
    return true;
  }
  double end_time() const override { return static_cast<double>(at_) / info_.fps; }
  int fail_at = -1;

 private:
  std::vector<Picture> frames_;
  VideoInfo info_;
  size_t at_ = 0;
};

// A uint8 tensor (F, H, W, 3).
inline std::vector<Picture> frames_of(const TensorView& v) {
  std::vector<Picture> frames;
  const int64_t bytes = v.shape[1] * v.shape[2] * 3;
  for (int64_t f = 0; f < v.shape[0]; ++f) {
    const auto* p = reinterpret_cast<const uint8_t*>(v.data) + f * bytes;
    frames.push_back({v.shape[2], v.shape[1], std::vector<uint8_t>(p, p + bytes)});
  }
  return frames;
}

inline std::vector<Picture> golden_video(const std::string& file, const std::string& name) {
  const SafetensorsFile f = SafetensorsFile::open(std::string(MEGASLIDE_TEST_DATA) + "/eval/" + file + ".safetensors");
  return frames_of(f.view(name));
}

inline Picture flat_picture(int64_t width, int64_t height, uint8_t level) {
  return {width, height, std::vector<uint8_t>(static_cast<size_t>(3 * width * height), level)};
}

}  // namespace megaslide
