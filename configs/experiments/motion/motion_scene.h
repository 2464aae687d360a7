// Clips made by a procedure, whose motion is known: textured shapes on smooth random paths, one in front of the other,
// over a textured background that may pan. Everything is a function of (options, seed, clip).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/video.h"

namespace megaslide {

struct MotionSceneOptions {
  int64_t frames = 17, height = 64, width = 64;
  int64_t sprites = 3;               // up to 32
  double slowest = 0.5, fastest = 4;  // pixels a frame; a sprite's speed is drawn between them, evenly in its logarithm
  double grain = 4;                   // pixels of the finest texture, from 1
  double pan = 0;                     // pixels a frame of the background
  double saturation = 1;              // of the sprites' colours, 0 (grey) … 1
  int64_t hold = 1;                   // frames that show one moment, counted as a causal VAE counts: the first frame for itself
  double snap = 0;                    // pixels: places are rounded to multiples of it; 0: left as they are
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

// Red, green and blue of a colour's name, 0 … 255, before the texture darkens it to a quarter or lightens it by a tenth. Throws
// an Error where there is none.
std::array<double, 3> motion_colour(std::string_view name);

// What is true of each pixel's centre: surface (T,H,W); for all frames but the last flow (T−1,H,W,2), where its surface
// goes until the next frame, (h, w) in pixels, and seen (T−1,H,W), 1 where it is still in view there.
struct MotionTruth {
  std::vector<uint8_t> surface, seen;
  std::vector<float> flow;
};
MotionTruth motion_truth(const MotionScene& scene, const MotionSceneOptions& options);

// Pixels and frames a token, as the codec and the network's patches make it. The first frame is a latent frame of its own.
struct TokenSize {
  int64_t frames = 4, height = 8, width = 8;
};

// Tokens (T,H,W) of a clip. What a token is taken to show is the surface at one pixel of one frame: the token's middle
// pixel, in frame 0 of latent frame 0 and the middle one of the others, frame 4i−2 of frames 4i−3 … 4i.
struct TokenGrid {
  int64_t frames = 1, height = 1, width = 1;
  TokenSize token;

  int64_t tokens() const { return frames * height * width; }
  int64_t frame_of(int64_t t) const { return t == 0 ? 0 : token.frames * t - token.frames / 2; }
  int64_t row_of(int64_t h) const { return token.height * h + token.height / 2; }
  int64_t column_of(int64_t w) const { return token.width * w + token.width / 2; }
};
// A usage Error where the clip is no whole number of tokens.
TokenGrid token_grid(const MotionSceneOptions& options, const TokenSize& token);

// (T,H,W,T,2): where the surface of token (t,h,w) goes until latent frame τ, (h, w) in tokens; 0 at τ = t. It does not say
// whether the surface is in view there.
std::vector<float> motion_displacement(const MotionScene& scene, const TokenGrid& grid);

// DIR/clips/NAME/frame_000.png … with DIR/clips/NAME.txt, as encode-clips reads it, and DIR/truth/NAME.safetensors with
// the truth's three tensors beside NAME.json with the paths.
void write_motion_clip(const std::string& directory, const std::string& name, const MotionScene& scene,
                       const MotionSceneOptions& options);
// DIR/displacement/NAME.safetensors: `displacement` F32 (T,H,W,T,2), as data.displacement of a run takes it.
void write_motion_displacement(const std::string& directory, const std::string& name, const MotionScene& scene,
                               const TokenGrid& grid);

}  // namespace megaslide
