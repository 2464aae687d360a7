#include "common/output.h"

#include <cerrno>
#include <cstdlib>
#include <mutex>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

std::string pending;            // standard output not yet written
std::string message_name = "megaslide";
constexpr size_t kBuffer = 1 << 16;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE) throw BrokenPipe();
    if (n < 0) throw system_error("write", "standard output", errno, "check where standard output goes: a full disk, a closed descriptor");
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::mutex stderr_mutex;
std::string status_line;        // what the terminal shows
const std::string kEraseLine = "\r\033[K";

void put_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nowhere left to complain
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// Cut to the terminal's width, counting code points, and printable: a line that wraps or moves the cursor could not be
// redrawn.
std::string fit_line(const std::string& text) {
  winsize size{};
  const int columns = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
  std::string line;
  int used = 0;
  for (const char c : printable(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80 && used++ == columns) break;
    line += c;
  }
  return line;
}

bool colours() {
  static const bool on = [] {
    const char* no = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    return stderr_is_terminal() && (no == nullptr || *no == '\0') && term != nullptr && std::string_view(term) != "dumb";
  }();
  return on;
}

std::string label(const char* word, const char* colour) {
  if (!colours()) return fmt::format("{}: {}: ", message_name, word);
  return fmt::format("{}: \033[1;{}m{}:\033[0m ", message_name, colour, word);
}

}  // namespace

void secure_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    const int opened = ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);  // the lowest free number: fd
    if (opened > fd) ::close(opened);
  }
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char32_t c : decode_utf8(text)) {
    if (c == '"' || c == '\\') out += '\\';
    if (c < 0x20) out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else append_utf8(out, c);
  }
  return out + '"';
}

void write_stdout(std::string_view text) {
  pending += text;
  if (pending.size() >= kBuffer) flush_stdout();
}

void flush_stdout() {
  std::string text;
  text.swap(pending);  // what could not be written is not tried again at exit
  write_all(STDOUT_FILENO, text);
}

void close_stdout() {
  flush_stdout();
  if (::close(STDOUT_FILENO) != 0 && errno != EBADF && errno != EINTR)
    throw system_error("close", "standard output", errno, "the data may not have reached its place: check the disk");
}

void set_message_name(const std::string& name) { message_name = name; }

bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

void write_stderr(std::string_view text) {
  std::lock_guard lock(stderr_mutex);
  if (status_line.empty()) return put_stderr(text);
  put_stderr(kEraseLine + std::string(text) + status_line);
}

void set_status_line(const std::string& text) {
  std::lock_guard lock(stderr_mutex);
  std::string next = fit_line(text);
  if (next == status_line) return;
  status_line = std::move(next);
  put_stderr(kEraseLine + status_line);
}

void print_error(const std::string& text) { write_stderr(label("error", "31") + printable_lines(text) + "\n"); }

LogSink stderr_log_sink(bool quiet, bool verbose) {
  return [quiet, verbose](LogLevel level, const std::string& text) {
    if (level == LogLevel::kDebug && !verbose) return;
    if (level == LogLevel::kInfo && quiet) return;
    write_stderr((level == LogLevel::kWarning ? label("warning", "33") : "") + printable_lines(text) + "\n");
  };
}

}  // namespace megaslide
