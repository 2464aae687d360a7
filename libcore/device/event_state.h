// What an Event refers to; shared by the devices of this room.
#pragma once
#include <condition_variable>
#include <mutex>

#include "device/device.h"

namespace megaslide {

struct Event::State {
  StreamKind source = StreamKind::kCompute;
  // cpu
  std::mutex mutex;
  std::condition_variable passed;
  bool done = false;
  // sim
  double time = 0;
};

}  // namespace megaslide
