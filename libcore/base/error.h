// Errors a user can cause, and checks for our own mistakes.
#pragma once
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace megaslide {

// What the process answers with (tools/common maps it to the exit code).
enum class ErrorKind {
  kFailure = 1,  // the work could not be done: I/O, damaged input, out of memory
  kUsage = 2,    // the command line or a configuration is wrong
  kNo = 3,       // it ran, and the answer is no: does not fit, does not verify, under the threshold
};

// Thrown for anything a user can cause. `what()` is one line or several, ready to print:
// "frame: frame: message" and, when there is one, a second line "  remedy: ...".
class Error : public std::exception {
 public:
  explicit Error(std::string message, std::string remedy = {}, ErrorKind kind = ErrorKind::kFailure);

  // Adds an outer frame ("layer 3, backward", a file name). Returns *this so that it can be rethrown in place.
  Error& add_context(std::string frame);

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }
  const std::vector<std::string>& context() const { return context_; }  // innermost first
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  void compose();
  std::string message_, remedy_, text_;
  std::vector<std::string> context_;
  ErrorKind kind_;
};

inline Error usage_error(std::string message, std::string remedy = {}) {
  return Error(std::move(message), std::move(remedy), ErrorKind::kUsage);
}

// "open DIR/file: No such file or directory" from an errno value, with the usual remedy for it where none is given.
Error system_error(const std::string& action, const std::string& path, int errno_value, std::string remedy = {});

// Prints the place and the message to stderr and aborts: a bug of ours, never a user's mistake.
[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& message);

}  // namespace megaslide

#define MS_CHECK(condition, ...)                                                                                \
  do {                                                                                                          \
    if (!(condition)) [[unlikely]]                                                                              \
      ::megaslide::check_failed(__FILE__, __LINE__, #condition, ::megaslide::check_message(__VA_ARGS__));      \
  } while (0)

namespace megaslide {
inline std::string check_message() { return {}; }
template <class... A>
std::string check_message(fmt::format_string<A...> format, A&&... args) {
  return fmt::format(format, std::forward<A>(args)...);
}
}  // namespace megaslide
