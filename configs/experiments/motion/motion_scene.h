// Clips made by a procedure, whose motion is known: textured shapes on smooth random paths, one in front of the other,
// over a textured background that may pan. Everything is a function of (options, seed, clip).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/video.h"

namespace megaslide {

struct MotionSceneOptions {
  int64_t frames = 17, height = 64, width = 64;
  int64_t sprites = 3;               // up to 32
  double slowest = 0.5, fastest = 4;  // pixels a frame; a sprite's speed is drawn between them, evenly in its logarithm
  double grain = 4;                   // pixels of the finest texture, from 1
  double pan = 0;                     // pixels a frame of the background
};

class MotionScene {
 public:
  // Throws a usage Error where an option is out of range.
  MotionScene(const MotionSceneOptions& options, uint64_t seed, uint64_t clip);

  Picture picture(int64_t frame) const;
  std::string caption() const;

  // Surface 0 is the background, those after it the sprites, later ones in front.
  struct Surface {
    std::string shape, colour;
    double radius = 0;                               // 0: everywhere
    std::vector<double> at_h, at_w;                  // pixels, one a frame: the centre, or how far the background came
    double speed = 0;                                // pixels a frame, before it turns back at a border
    double angle = 0;                                // radians
    double rgb[2][3] = {{0, 0, 0}, {0, 0, 0}};       // the texture lies between these
  };
  const std::vector<Surface>& surfaces() const { return surfaces_; }

  // The surface that is seen at a point of a frame, in pixels from the corner.
  int64_t surface_at(int64_t frame, double h, double w) const;

 private:
  double distance(const Surface& s, int64_t frame, double h, double w) const;  // to its edge, < 0 inside
  double texture(size_t surface, double u, double v) const;                    // 0 … 1
  void make_path(size_t surface, double speed, double turns, bool reflect);

  MotionSceneOptions options_;
  uint64_t seed_, clip_;
  std::vector<Surface> surfaces_;
};

// What is true of each pixel's centre: surface (T,H,W); for all frames but the last flow (T−1,H,W,2), where its surface
// goes until the next frame, (h, w) in pixels, and seen (T−1,H,W), 1 where it is still in view there.
struct MotionTruth {
  std::vector<uint8_t> surface, seen;
  std::vector<float> flow;
};
MotionTruth motion_truth(const MotionScene& scene, const MotionSceneOptions& options);

// DIR/clips/NAME/frame_000.png … with DIR/clips/NAME.txt, as encode-clips reads it, and DIR/truth/NAME.safetensors with
// the truth's three tensors beside NAME.json with the paths.
void write_motion_clip(const std::string& directory, const std::string& name, const MotionScene& scene,
                       const MotionSceneOptions& options);

}  // namespace megaslide
