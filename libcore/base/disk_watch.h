// Notices a disk that does not answer: a failing drive, a network file system whose server is gone. Such a call hangs in the
// kernel, where no exception reaches the thread; only the process can be ended, and that is the program's to do.
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"

namespace megaslide {

// A call that waits for a disk, from construction to destruction: what a DiskWatch sees.
class DiskOperation {
 public:
  DiskOperation(const char* what, const std::string& path);  // "write", a literal
  ~DiskOperation();
  DiskOperation(const DiskOperation&) = delete;
  DiskOperation& operator=(const DiskOperation&) = delete;

 private:
  std::list<std::pair<const char*, std::string>>::iterator place_;
};

// Ends a process that hangs, with this message. Without a handler the message goes to the log, and the wait goes on.
using HangHandler = std::function<void(const Error&)>;
HangHandler set_hang_handler(HangHandler handler);  // returns the one before; call before threads start

// While it lives: where operations are under way and none ends for `seconds` (0: for ever), the hang handler is called, once,
// with an Error that names them.
class DiskWatch {
 public:
  DiskWatch(double seconds, std::string remedy);
  ~DiskWatch();
  DiskWatch(const DiskWatch&) = delete;
  DiskWatch& operator=(const DiskWatch&) = delete;

 private:
  void run();
  const double seconds_;
  const std::string remedy_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megaslide
