// Several clips on one picture, for a person to look at.
#pragma once
#include <cstdint>
#include <vector>

#include "io/video.h"

namespace megaslide {

// One row a clip, `columns` evenly spaced pictures of it from the first to the last (all where it has fewer), two
// pixels of gutter around each. Cells have the size of the largest picture; smaller ones are centred. Not empty.
Picture contact_sheet(const std::vector<std::vector<Picture>>& clips, int64_t columns);

}  // namespace megaslide
