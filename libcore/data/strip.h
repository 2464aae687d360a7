// Rows of small pictures for the report: the whole clip, and what is kept of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/selection.h"
#include "io/video.h"
#include "tensor/tensor.h"

namespace megaslide {

inline constexpr int64_t kStripPictures = 8, kStripHeight = 72;

// Evenly spaced pictures of a clip whose length shows only at its end.
class StripMaker {
 public:
  // `outputs`: how many frames after re-timing precede this picture.
  void add(const Picture& picture, int64_t outputs);
  // One row: what lies outside of `region` or from output `frames_used` on is dark. Empty without a picture.
  Picture row(const Region& region, int64_t frames_used) const;

 private:
  struct Kept {
    Picture small;
    double scale = 1;
    int64_t index = 0, outputs = 0;
  };
  std::vector<Kept> kept_;
  int64_t count_ = 0, stride_ = 1;
};

// Evenly spaced frames of F32 [3, F, H, W] in [-1, 1].
Picture strip_of(const TensorView& video);

}  // namespace megaslide
