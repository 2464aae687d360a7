#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace megaslide {

Error::Error(std::string message, std::string remedy, ErrorKind kind)
    : message_(std::move(message)), remedy_(std::move(remedy)), kind_(kind) {
  compose();
}

Error& Error::add_context(std::string frame) {
  context_.push_back(std::move(frame));
  compose();
  return *this;
}

void Error::compose() {
  text_.clear();
  for (auto frame = context_.rbegin(); frame != context_.rend(); ++frame) text_ += *frame + ": ";
  text_ += message_;
  if (!remedy_.empty()) text_ += "\n  remedy: " + remedy_;
}

namespace {

const char* usual_remedy(int errno_value) {
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG: return "check the path";
    case EISDIR: return "it is a folder: name a file";
    case EACCES:
    case EPERM: return "change its permissions, or choose another place";
    case EROFS: return "choose a place that can be written";
    case ENOSPC:
    case EDQUOT: return "free space on that file system or use another one";
    case EIO:
    case ENXIO:
    case ENODEV:
    case ESTALE:
    case ETIMEDOUT: return "the disk or the connection to it fails: look into the system's log (dmesg), or use another disk";
    case EMFILE: return "raise the limit on open files (ulimit -n)";
    default: return "";
  }
}

}  // namespace

Error system_error(const std::string& action, const std::string& path, int errno_value, std::string remedy) {
  return Error(fmt::format("{} {}: {}", action, path, std::strerror(errno_value)), remedy.empty() ? usual_remedy(errno_value) : std::move(remedy));
}

void check_failed(const char* file, int line, const char* expression, const std::string& message) {
  std::fprintf(stderr, "%s:%d: internal check failed: %s%s%s\n", file, line, expression, message.empty() ? "" : ": ",
               message.c_str());
  std::abort();
}

}  // namespace megaslide
