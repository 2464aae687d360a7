#include "base/log.h"

#include <mutex>

namespace megaslide {
namespace {
std::mutex mutex;
LogSink& current_sink() {
  static LogSink s;
  return s;
}
}  // namespace

LogSink set_log_sink(LogSink sink) {
  std::lock_guard lock(mutex);
  std::swap(current_sink(), sink);
  return sink;
}

void log_message(LogLevel level, const std::string& text) {
  std::lock_guard lock(mutex);
  if (current_sink()) current_sink()(level, text);
}

}  // namespace megaslide
