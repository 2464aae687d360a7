#include "base/log.h"

#include <mutex>

namespace megaslide {
namespace {
std::mutex mutex;
LogSink& sink() {
  static LogSink s;
  return s;
}
}  // namespace

LogSink set_log_sink(LogSink next) {
  std::lock_guard lock(mutex);
  std::swap(sink(), next);
  return next;
}

void log_message(LogLevel level, const std::string& text) {
  std::lock_guard lock(mutex);
  if (sink()) sink()(level, text);
}

}  // namespace megaslide
