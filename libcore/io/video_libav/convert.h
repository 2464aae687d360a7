// Decoded pictures to shown ones: square pixels, RGB of 8 bits in BT.709, turned as the header says.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "io/video_libav/av.h"
#include "io/video_tone_map.h"

namespace megaslide::av {

// How stored pixels become shown pixels: shown(x', y') where x' and y' come from the stored x and y, mirrored or not.
struct Orientation {
  bool transpose = false, mirror_x = false, mirror_y = false;  // the mirrors act on shown coordinates
  int degrees = 0;                                             // clockwise
  bool mirrored() const { return transpose == (mirror_x == mirror_y); }
};

class Converter {
 public:
  // From the first picture of a stream: size, shape of the pixels, orientation, colours. bt601: VideoColour::kBt601.
  void begin(AVFrame* first, AVStream* stream, const AVCodecContext* decoder, bool bt601);

  int64_t width() const { return orientation_.transpose ? height_ : width_; }
  int64_t height() const { return orientation_.transpose ? width_ : height_; }
  int degrees() const { return orientation_.degrees; }
  const std::string& transfer() const { return transfer_; }  // its name where the pictures are HDR
  const std::string& warnings() const { return warnings_; }  // one a line

  void convert(const AVFrame* frame, uint8_t* rgb);  // width()·height()·3 bytes

 private:
  void choose_orientation(const AVFrame* first, const AVStream* stream);
  void choose_size(AVFrame* first, AVStream* stream);
  void choose_colours(const AVFrame* first, const AVStream* stream, const AVCodecContext* decoder);
  void make_scaler(const AVFrame* frame, const std::array<int, 5>& key, bool full);
  void warn(const std::string& text);

  Orientation orientation_;
  bool bt601_ = false;
  int stored_width_ = 0, stored_height_ = 0;
  int width_ = 0, height_ = 0;  // of square pixels, before turning
  Owner<SwsContext> scaler_;
  std::array<int, 5> scaler_key_{};
  std::unique_ptr<ToneMapper> mapper_;
  std::vector<uint8_t> buffer_, mapped_;
  std::string transfer_, warnings_;
};

}  // namespace megaslide::av
