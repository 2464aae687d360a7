#include "case.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace megaslide::cases {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

[[noreturn]] void become(const std::vector<std::string>& command, const RunLimits& limits, int out, int err) {
  const auto limit = [](int what, int64_t bytes) {
    const struct rlimit r = {static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    return bytes == 0 || ::setrlimit(static_cast<__rlimit_resource>(what), &r) == 0;
  };
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow reports EFBIG, as a full disk reports ENOSPC
  if (::chdir(limits.folder.c_str()) != 0 || !limit(RLIMIT_AS, limits.address_space) || !limit(RLIMIT_FSIZE, limits.file_size)) ::_exit(126);
  std::vector<char*> argv;
  for (const std::string& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

// Reads both pipes to their ends; the process is killed when its time is over or `kill_when` says so.
void collect(RunResult& r, const RunLimits& limits, pid_t pid, int out, int err) {
  const auto start = Clock::now();
  struct pollfd fds[2] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
  std::string* texts[2] = {&r.out, &r.err};
  int open = 2;
  char buffer[65536];
  while (open > 0) {
    ::poll(fds, 2, 5);
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        texts[i]->append(buffer, static_cast<size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        fds[i].fd = -1;
        --open;
      }
    }
    r.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (limits.kill_when && limits.kill_when()) ::kill(pid, SIGKILL);
    if (r.seconds > limits.seconds) {
      r.timed_out = true;
      ::kill(pid, SIGKILL);
    }
  }
}

}  // namespace

Json RunResult::json() const { return Json::parse(out, nullptr, false); }

std::string RunResult::line(const std::string& text) const {
  const size_t at = err.find(text);
  if (at == std::string::npos) return {};
  const size_t begin = err.rfind('\n', at), end = err.find('\n', at);
  const size_t first = begin == std::string::npos ? 0 : begin + 1;
  return err.substr(first, (end == std::string::npos ? err.size() : end) - first);
}

RunResult Case::run(std::vector<std::string> command, const RunLimits& given) {
  RunLimits limits = given;
  if (limits.folder.empty()) limits.folder = work_;
  if (command.at(0).find('/') == std::string::npos && fs::exists(program(command[0]))) command[0] = program(command[0]);
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t pid = ::fork();
  if (pid == 0) become(command, limits, out[1], err[1]);
  ::close(out[1]);
  ::close(err[1]);
  RunResult r;
  collect(r, limits, pid, out[0], err[0]);
  ::close(out[0]);
  ::close(err[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) r.status = WEXITSTATUS(status);
  else r.signal = WTERMSIG(status);
  if (r.timed_out) expect(false, command[0] + " did not end in time");
  return r;
}

std::string Case::copy(const std::string& from, const std::string& name) {
  const std::string to = work(name);
  fs::copy(from, to, fs::copy_options::recursive);
  fs::permissions(to, fs::perms::owner_all, fs::perm_options::add);
  if (fs::is_directory(to))
    for (const auto& e : fs::recursive_directory_iterator(to))
      fs::permissions(e.path(), e.is_directory() ? fs::perms::owner_all : fs::perms::owner_write, fs::perm_options::add);
  return to;
}

bool Case::expect(bool holds, const std::string& what) {
  if (!holds) problems_.push_back(what);
  return holds;
}

void Case::expect_status(const RunResult& r, int status, const std::string& what) {
  expect(r.status == status, what + ": exit " + (r.signal != 0 ? "by signal " + std::to_string(r.signal) : std::to_string(r.status)) + ", expected " +
                                 std::to_string(status) + ": " + r.err.substr(0, 300));
}

void Case::expect_says(const RunResult& r, const std::string& text) {
  expect(r.says(text), "nothing says \"" + text + "\": " + r.err.substr(0, 300));
}

void Case::saw(const std::string& what) {
  std::string cell;  // of a Markdown table
  for (const char ch : what) cell += ch == '\n' ? ' ' : ch == '|' ? '/' : ch;
  seen_.push_back(cell);
}

std::string Case::seen() const {
  std::string all;
  for (const std::string& s : seen_) all += (all.empty() ? "" : "; ") + s;
  return all;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace megaslide::cases
