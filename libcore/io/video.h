// Video in and out. libav lives in a module of its own that is loaded at the first use, so that programs start
// quickly and `--help` works without it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace megaslide {

// One RGB picture, 8 bit, row-major, 3 bytes a pixel, no padding.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> rgb;
};

struct VideoInfo {
  int64_t width = 0, height = 0;  // after rotation
  double fps = 0;                 // average rate
  double duration = 0;            // seconds
  int rotation = 0;               // degrees clockwise applied to the stored pictures
  std::string codec;
};

class VideoReader {
 public:
  virtual ~VideoReader() = default;
  virtual const VideoInfo& info() const = 0;
  // Next picture in presentation order with its time in seconds; false at the end. Throws Error on damaged data.
  virtual bool next(Picture& picture, double& time) = 0;
};

// Throws Error: "FILE: not a video: ...", with what the file seems to be (text, HTML, empty, git-lfs pointer).
std::unique_ptr<VideoReader> open_video(const std::string& path);
bool is_video_file_name(const std::string& path);  // by extension

class VideoWriter {
 public:
  virtual ~VideoWriter() = default;
  virtual void write(const Picture& picture) = 0;
  virtual void close() = 0;  // finishes, fsyncs, renames into place; without it nothing is left behind
};

// By extension: .mp4 (H.264, or MPEG-4 where no H.264 encoder is installed), .webm (VP9/VP8), .gif, or a folder of
// PNG frames (no extension). Width and height even for mp4 and webm.
std::unique_ptr<VideoWriter> create_video(const std::string& path, int64_t width, int64_t height, double fps);

void write_png(const std::string& path, const Picture& picture);  // atomic
Picture read_png(const std::string& path);
std::string encode_png(const Picture& picture);  // bytes, for embedding in HTML

}  // namespace megaslide
