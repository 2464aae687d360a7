// Finds sprites again by their colour, in clips whose paths are known and in samples whose paths are not.
//
// A pixel belongs to the sprite colour whose hue (Cb, Cr of BT.601) is nearest, where it lies within 25 degrees and is at least
// a fifth as strong as the colour itself: the background is grey, and textures make a colour darker, which keeps its hue. White
// has no hue and is not tracked. A sprite's place in a frame is the centre of the largest connected patch of its colour, which
// must have kFewestPixels, and half of all pixels of that colour: in noise every colour is everywhere, and nowhere.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace megaslide {

inline constexpr int64_t kFewestPixels = 40;

struct Place {
  double h = 0, w = 0;  // pixels from the corner
};
using Track = std::vector<std::optional<Place>>;  // one a frame

// "a fast red disc, a slow blue square and …": the sprites of a caption of make-motion-clips whose colour no other has.
struct CaptionSprite {
  std::string pace, colour, shape;
  int64_t surface = 0;  // its number in the clip
};
std::vector<CaptionSprite> trackable_sprites(const std::string& caption);

// `video`: F32 (3,F,H,W) in [-1, 1]; the colour as it is at this saturation; the frames that are looked at.
Track track_colour(const TensorView& video, const std::string& colour, double saturation, std::span<const int64_t> frames);

// How far the places are from a smooth path: the parabola in time that fits them best, h and w each. RMS in pixels, divided by
// what three free numbers an axis leave of the frames. Nothing below five places.
std::optional<double> path_residual(const Track& track);
// Mean pixels from one place to the next, of neighbouring frames that both have one.
std::optional<double> mean_step(const Track& track);

}  // namespace megaslide
