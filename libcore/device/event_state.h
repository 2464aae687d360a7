// What an Event refers to; shared by the devices of this room.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>

#include "device/device.h"

namespace megaslide {

// An event of a driver.
class NativeEvent {
 public:
  virtual ~NativeEvent() = default;
  virtual bool passed() = 0;
  virtual void synchronize() = 0;  // blocks without spinning
};

struct Event::State {
  StreamKind source = StreamKind::kCompute;
  // Devices of threads: whether the stream has come to the event; where it has a native one, that tells when it passes.
  std::mutex mutex;
  std::condition_variable passed;
  bool done = false;
  std::shared_ptr<NativeEvent> native;
  // sim
  double time = 0;
};

}  // namespace megaslide
