// Which frames of a clip are used, and which part of its picture.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"

namespace megaslide {

// What a clip may become. 0 leaves a side open: the clip's own size, or any number of frames up to `max_frames`.
struct Bucket {
  int64_t width = 0, height = 0, frames = 0;
};

struct SelectionRule {
  std::vector<Bucket> buckets;       // at least one
  int64_t max_frames = 0;            // for buckets without a frame count
  double fps = 0;                    // re-time to this rate; 0 keeps the clip's own
  int64_t temporal_stride = 4;       // frames must be 4k+1
  int64_t size_multiple = 16;        // a clip's own size is cropped to multiples of this
  std::string text() const;          // everything above, for hashes
};

// "64x64x17, 96x64x9" (W×H×F), "832x480" (W×H), "[1, 17, 33]" (F), one or several a line, '#' comments. A usage Error
// "NAME:LINE: ..." for what is none of these, frames that are not 4k+1 and sizes that are not multiples of
// 2·spatial stride. `width`, `height` (0: open) complete entries without a size.
std::vector<Bucket> parse_buckets(std::string_view text, const std::string& name, const ModelConfig& model, int64_t width, int64_t height);
void check_bucket(const Bucket& bucket, const ModelConfig& model, const std::string& where);

// The size for a picture of w×h: of all sizes the one nearest in aspect ratio, then the largest that needs no
// enlargement, then the smallest. Empty with a reason where no latent would be left (a side below size_multiple).
struct Size {
  int64_t width = 0, height = 0;
  bool own = false;  // the clip's own size, cropped without scaling
};
std::optional<Size> choose_size(const SelectionRule& rule, int64_t w, int64_t h, std::string& reason);
// The largest frame count for that size that is not above `available`; 0 where even the smallest is.
int64_t choose_frames(const SelectionRule& rule, const Size& size, int64_t available, int64_t& smallest);
int64_t most_frames(const SelectionRule& rule, const Size& size);  // over all buckets of that size

// Re-timing: output k shows the picture on screen at k/fps while k/fps < duration. Pictures come in order with their
// times; `slack` (seconds) forgives the rounding of a coarse clock.
class Retimer {
 public:
  // fps 0: every picture once.
  Retimer(double fps, double tick);
  // How many outputs the picture before the one shown at `time` takes: call with each time from the second on.
  int64_t until(double time);
  // How many outputs the last picture takes, given when it leaves the screen.
  int64_t at_end(double duration);
  int64_t outputs() const { return next_; }

 private:
  double fps_, slack_;
  int64_t next_ = 0;
};

// The centred region of a w×h picture that becomes `size`: scaled so that it just covers, or, for a clip's own size, cut
// on whole pixels.
struct Region {
  double x = 0, y = 0, width = 0, height = 0;
};
Region region_for(int64_t w, int64_t h, const Size& size);

}  // namespace megaslide
