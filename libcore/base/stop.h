// How long work is asked to end early. The program owns the flag (tools/common sets it at the first INT or TERM); the
// library polls it where it can leave everything whole, between steps, clips or files.
#pragma once
#include <atomic>
#include <exception>

namespace megaslide {

// Thrown by throw_if_requested(): no failure, so no Error; the program cleans up and dies by the signal.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped"; }
};

class StopToken {
 public:
  StopToken() = default;  // never asks
  explicit StopToken(const std::atomic<int>* flag) : flag_(flag) {}  // asks as soon as *flag is not 0
  bool requested() const { return flag_ != nullptr && flag_->load(std::memory_order_relaxed) != 0; }
  void throw_if_requested() const {
    if (requested()) throw Stopped();
  }

 private:
  const std::atomic<int>* flag_ = nullptr;
};

}  // namespace megaslide
