#include "common/run_tool.h"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <new>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "base/disk_watch.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "common/flags.h"
#include "device/device.h"
#include "common/help.h"
#include "common/output.h"
#include "common/paths.h"
#include "common/progress_line.h"
#include "common/signals.h"
#include "common/version.h"
#include "config/search_path.h"

namespace megaslide {
namespace {

void add_common_flags(CLI::App& app, const ToolInfo& info, CommonFlags& f, std::string& progress, int64_t& threads, uint64_t& seed) {
  const auto group = [](CLI::Option* option) { return option->group("Common"); };
  if (info.flags & kDeviceFlag) {
    const std::vector<std::string> kinds = info.flags & kSimDevice ? std::vector<std::string>{"cpu", "cuda", "sim"}
                                                                   : std::vector<std::string>{"cpu", "cuda"};
    group(add_choice(app, "--device", f.device, kinds, "Where to compute (default: cpu)"));
  }
  if (info.flags & kComputeDtypeFlag)
    group(add_choice(app, "--compute-dtype", f.compute_dtype, {"bf16", "fp32"}, "Type of weights and products"));
  if (info.flags & kThreadsFlag)
    group(add_integer(app, "--threads", threads, 1, 4096, "Threads (default: all this process may use)"));
  if (info.flags & kSeedFlag) group(add_seed(app, "--seed", seed, "Seed of the random numbers"));
  group(app.add_flag("--json", f.json, "Machine-readable result on standard output"));
  group(add_choice(app, "--progress", progress, {"auto", "always", "never"}, "Progress on standard error (default: auto)"));
  group(app.add_flag("-q,--quiet", f.quiet, "Only warnings and errors"));
  group(app.add_flag("-v,--verbose", f.verbose, "More messages"));
  app.set_help_flag("-h,--help", "Print this help and exit")->group("Common");
  app.set_version_flag("--version", [&info] { return version_text(info); }, "Print the version and exit")->group("Common");
}

// What CLI11 found wrong, in this project's words where they say more. An unknown option goes first: it may be the
// misspelt name of what is missing.
Error command_line_error(const CLI::App& app, const ToolInfo& info, const CLI::ParseError& e) {
  std::string message = e.what(), remedy = fmt::format("see {} --help", info.name);
  const CLI::App* innermost = &app;
  while (!innermost->get_subcommands().empty()) innermost = innermost->get_subcommands().front();
  const bool extras = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (extras || e.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
    for (const std::string& extra : app.remaining(true)) {
      if (!extra.starts_with('-') || extra == "-") {
        if (extras) message = fmt::format("unexpected argument '{}'", extra);
        continue;
      }
      message = fmt::format("unknown option '{}'", extra.substr(0, extra.find('=')));
      if (const std::string near = nearest_option(*innermost, extra); !near.empty()) remedy = fmt::format("did you mean {}? {}", near, remedy);
      break;
    }
  }
  if (const auto at = message.find(": At Most 1 required but received"); at != std::string::npos) message.replace(at, std::string::npos, ": given more than once");
  return usage_error(message, remedy);
}

void finish_flags(const ToolInfo& info, const CLI::App& app, CommonFlags& f, const std::string& progress, int64_t threads, uint64_t seed) {
  const auto given = [&](unsigned flag, const char* name) { return (info.flags & flag) && app.get_option(name)->count() > 0; };
  f.progress = progress == "always" ? ProgressMode::kAlways : progress == "never" ? ProgressMode::kNever : ProgressMode::kAuto;
  f.device_given = given(kDeviceFlag, "--device");
  f.threads_given = given(kThreadsFlag, "--threads");
  f.threads = f.threads_given ? static_cast<int>(threads) : available_threads();
  if (given(kSeedFlag, "--seed")) f.seed = seed;
  if (f.quiet && f.verbose) throw usage_error("-q and -v contradict each other", "give one of them");
  if (f.backend() == Backend::kCuda && make_cuda_device == nullptr)
    throw usage_error("--device cuda: this program was built without CUDA",
                      "use --device cpu, or build with CUDA: cmake --preset release -DMEGASLIDE_CUDA=ON where nvcc is installed");
}

// Parses and runs. Leaves by exceptions; returns the exit status.
int parse_and_run(int argc, char** argv, const ToolInfo& info, const std::function<void(CLI::App&)>& setup,
                  const std::function<int(Tool&)>& body) {
  Tool tool;
  std::string progress = "auto";
  int64_t threads = 1;
  uint64_t seed = 0;
  CLI::App app(info.summary, info.name);
  setup(app);
  add_common_flags(app, info, tool.flags, progress, threads, seed);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    tool.write(format_help(app, info));
    return 0;
  } catch (const CLI::CallForVersion& e) {
    tool.write(std::string(e.what()) + "\n");
    return 0;
  } catch (const CLI::ParseError& e) {
    throw command_line_error(app, info, e);
  }
  finish_flags(info, app, tool.flags, progress, threads, seed);
  set_hang_handler([](const Error& e) {
    print_error(e.what());
    ::_exit(static_cast<int>(e.kind()));
  });
  set_log_sink(stderr_log_sink(tool.flags.quiet, tool.flags.verbose));
  set_progress_sink(make_progress_sink(tool.flags.progress, tool.flags.quiet));
  set_config_directories(preset_directories());
  if (info.flags & kGracefulStop) tool.stop = catch_stop_signals(tool.flags.quiet);
  return body(tool);
}

int guarded_run(int argc, char** argv, const ToolInfo& info, const std::function<void(CLI::App&)>& setup,
                const std::function<int(Tool&)>& body) {
  try {
    const int status = parse_and_run(argc, argv, info, setup, body);
    close_stdout();
    return status;
  } catch (const BrokenPipe&) {
    die_by_signal(SIGPIPE);
  } catch (const Stopped&) {
    return 1;  // the caller dies by the signal that asked
  } catch (const Error& e) {
    print_error(e.what());
    try {
      flush_stdout();  // lines that were complete before the failure
    } catch (const std::exception&) {
    }
    return static_cast<int>(e.kind());
  } catch (const std::bad_alloc&) {
    print_error("out of memory\n  remedy: use a smaller size or a machine with more memory; plan-memory tells what is needed");
  } catch (const std::filesystem::filesystem_error& e) {
    const std::string path = e.path1().string();
    print_error(system_error("use", path, e.code().value(), "check the path and its permissions").what());
  } catch (const std::exception& e) {
    print_error(fmt::format("unexpected: {}", e.what()));
  }
  return 1;
}

}  // namespace

void Tool::write(std::string_view text) { write_stdout(text); }
void Tool::flush() { flush_stdout(); }

std::string read_text_argument(const std::string& path, int64_t limit) {
  const std::string shown = path == "-" ? "standard input" : path;
  const int fd = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw system_error("open", shown, errno);
  std::string text;
  char buffer[1 << 16];
  int failure = 0;
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failure = errno;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
    if (static_cast<int64_t>(text.size()) > limit) break;
  }
  if (path != "-") ::close(fd);
  if (failure != 0) throw system_error("read", shown, failure);
  if (static_cast<int64_t>(text.size()) > limit) throw Error(fmt::format("{}: larger than {} bytes", shown, limit), "check the path");
  return text;
}

int run_tool(int argc, char** argv, const ToolInfo& info, const std::function<void(CLI::App&)>& setup,
             const std::function<int(Tool&)>& body) {
  secure_standard_streams();
  ignore_write_signals();
  report_bus_errors(info.name.c_str());
  set_message_name(info.name);
  const int status = guarded_run(argc, argv, info, setup, body);
  set_status_line("");
  if (const int signal = caught_signal(); signal != 0) die_by_signal(signal);
  return status;
}

}  // namespace megaslide
