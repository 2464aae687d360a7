// Where the tensors and frames lie that tests make themselves.
#pragma once
#include "vision/place.h"

namespace megaslide {

inline const Place& processor() {
  static InlineStream stream;
  static const Place place(stream);
  return place;
}

}  // namespace megaslide
