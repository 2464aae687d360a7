// encode-clips as the cases use it, and the numbers drawn into their pictures.
#pragma once
#include <string>
#include <vector>

#include "case.h"
#include "io/video.h"

namespace megaslide::cases {

struct Encoded {
  RunResult run;
  Json report;        // null where the program printed none
  std::string cache;  // folder

  const Json* find(const std::string& path, const std::string& caption = {}) const;  // null where there is no such clip
  std::vector<std::string> kept() const;                                             // paths, in the report's order
};

// Encodes `datasets` with --json and --pictures into work()/NAME; an empty model is the tiny one.
Encoded encode(Case& c, const std::string& name, const std::vector<std::string>& datasets, const std::vector<std::string>& flags = {},
               const RunLimits& limits = {});

std::vector<Picture> pictures_of(const Json& clip);  // that were encoded
// The numbers drawn into pictures that are the centred cut-out of pictures of this size; -1 where none can be read.
// `quarter_turn`: the pictures were turned clockwise after the numbers were drawn.
std::vector<int> stamps_of(const Json& clip, bool quarter_turn = false);

struct Rgb {
  double r = 0, g = 0, b = 0;
};
Rgb mean_colour(const Picture& p, int64_t x, int64_t y, int64_t w, int64_t h);
std::string colour_name(const Rgb& c);  // the nearest of red, green, blue, yellow

std::vector<int> ints(const Json& array, size_t most = SIZE_MAX);  // its first `most` numbers
std::string shown(const std::vector<int>& numbers);                // "0..24" or "0,2,4"

// Frames decoded, size, and the numbers of the pictures that were used; says so in the table.
bool expect_clip(Case& c, const Json* clip, int64_t decoded, const std::vector<int>& stamps);
void expect_dropped(Case& c, const Encoded& e, const std::string& path, const std::string& reason);
std::string reason_of(const Json& clip);
std::string warnings_of(const Json& clip);  // one a line

}  // namespace megaslide::cases
