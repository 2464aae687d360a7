#include "vision/place.h"

#include <cstring>

namespace megaslide {

void Place::download(void* to, const void* from, int64_t bytes) const {
  if (device_) {
    device_->wait(device_->download(to, from, bytes));
  } else {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

}  // namespace megaslide
