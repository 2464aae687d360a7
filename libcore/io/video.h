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
  double fps = 0;                 // average rate as the container states it; 0: it states none
  double duration = 0;            // seconds as the container states it; 0: it states none
  double tick = 0;                // resolution of the container's clock in seconds
  int64_t declared_frames = 0;    // the header's count, which may be wrong; 0: it states none
  int rotation = 0;               // degrees clockwise applied to the stored pictures
  bool rate_known = true;         // false: times count pictures at kUnknownRate (frame folders, stills)
  std::string codec;
  std::string transfer;           // transfer function where the file is HDR ("smpte2084"), else empty
};
inline constexpr double kUnknownRate = 16;

class VideoReader {
 public:
  virtual ~VideoReader() = default;
  virtual const VideoInfo& info() const = 0;
  // Next picture in presentation order with its time in seconds, the first at 0; false at the end. Throws Error at
  // the first damaged picture: everything returned before is intact.
  virtual bool next(Picture& picture, double& time) = 0;
  // Seconds at which the last picture returned leaves the screen.
  virtual double end_time() const = 0;
  // What a person should know: HDR that was tone-mapped, pixels that were not square, sizes that change, ...
  virtual std::vector<std::string> warnings() const { return {}; }
};

// How stored pictures become RGB. kTagged: matrix and range by the file's tags (untagged: BT.709 from 720 lines on, else BT.601), HDR and
// wide gamuts to SDR BT.709. kBt601: the matrix of BT.601 whatever the tags say, full range only where the pixel format has it, no
// tone mapping, chroma as swscale does it when nothing is asked of it: as OpenCV reads videos.
enum class VideoColour { kTagged, kBt601 };

// A file, or a folder of PNG or JPEG pictures in natural order (frame_2 before frame_10). PQ, HLG and
// wide gamuts: io/video_tone_map.h. A folder's pictures are always read by their tags. Edit lists, rotation and mirroring are applied; pixels that are not square are made so.
// Throws Error: "FILE: not a video: ...", with what the file seems to be (text, HTML, empty, git-lfs pointer).
std::unique_ptr<VideoReader> open_video(const std::string& path, VideoColour colour = VideoColour::kTagged);
bool is_video_file_name(const std::string& path);  // by extension, any case
bool is_image_file_name(const std::string& path);  // png, jpg, jpeg, webp, bmp
// The pictures of a frame folder in natural order, as full paths; empty where the folder is none: it holds other
// media, or no pictures, or fewer than `at_least`.
std::vector<std::string> frame_folder_pictures(const std::string& path, size_t at_least = 1);
// "frame_2" before "frame_10": runs of digits compare as numbers.
bool natural_less(const std::string& a, const std::string& b);

class VideoWriter {
 public:
  virtual ~VideoWriter() = default;
  virtual void write(const Picture& picture) = 0;
  virtual void close() = 0;  // finishes, fsyncs, renames into place; without it nothing is left behind
};

// By extension: .mp4 (H.264, or MPEG-4 where no H.264 encoder is installed), .webm (VP9/VP8), .gif (one palette for
// the whole clip), or a folder of PNG frames (no extension). Width and height even for mp4 and webm. The bytes depend
// on the pictures and the installed encoder alone.
std::unique_ptr<VideoWriter> create_video(const std::string& path, int64_t width, int64_t height, double fps);

void write_png(const std::string& path, const Picture& picture);  // atomic
Picture read_png(const std::string& path);                        // any PNG, to 8-bit RGB over black
std::string encode_png(const Picture& picture);                   // bytes, for embedding in HTML
Picture decode_png(const std::string& bytes);                     // throws Error without a file name

}  // namespace megaslide
