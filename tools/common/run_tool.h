// The part of main() that all programs share: flags, help, messages, exit codes, signals, standard output.
//
//   int main(int argc, char** argv) {
//     megaslide::Options o;
//     return megaslide::run_tool(argc, argv, {.name = "shard-weights", .summary = "...", .examples = {"shard-weights ..."},
//                                             .flags = megaslide::kThreadsFlag | megaslide::kSeedFlag},
//         [&](CLI::App& app) { app.add_option("SRC", o.source, "Checkpoint to import")->required()->group("Input"); },
//         [&](megaslide::Tool& tool) { tool.print("{}\n", work(o, tool.flags.threads, tool.stop)); return 0; });
//   }
//
// Options belong to a group (`->group("Output")`): `--help` prints them group by group, in the order of declaration.
// Exit status: what the body returns (0, or 3 for "the answer is no"); 1, 2 or 3 by the kind of an Error; 2 for a wrong
// command line. A reader that goes away (`| head -1`) ends the program quietly by SIGPIPE, 141 in a shell: status 0 would
// claim that all of the work was done.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "base/stop.h"
#include "kernels/stream.h"

namespace CLI {
class App;
}

namespace megaslide {

// Optional groups of common flags, chosen by the program.
enum ToolFlagGroups : unsigned {
  kDeviceFlag = 1,        // --device cpu|cuda (a CPU build refuses cuda and says how to get it)
  kSimDevice = 2,         // --device also takes sim
  kComputeDtypeFlag = 4,  // --compute-dtype bf16|fp32
  kThreadsFlag = 8,       // --threads N
  kSeedFlag = 16,         // --seed N
  kGracefulStop = 32,     // the body polls Tool::stop; the first INT or TERM only sets it
};

struct ToolInfo {
  std::string name;      // "shard-weights"
  std::string summary;   // one or two sentences for --help
  std::vector<std::string> examples;
  unsigned flags = 0;
};

enum class ProgressMode { kAuto, kAlways, kNever };

struct CommonFlags {
  bool quiet = false, verbose = false, json = false;
  ProgressMode progress = ProgressMode::kAuto;
  std::string device = "cpu";
  bool device_given = false;
  std::string compute_dtype;        // "bf16", "fp32", or empty when not given
  int threads = 1;                  // resolved: all this process may use unless given
  bool threads_given = false;
  std::optional<uint64_t> seed;     // nullopt when not given

  Backend backend() const { return device == "cuda" ? Backend::kCuda : Backend::kCpu; }
};

// What the body works with.
class Tool {
 public:
  CommonFlags flags;
  StopToken stop;

  // Standard output, buffered; every write is checked. Throws when it fails; a broken pipe ends the program quietly.
  void write(std::string_view text);
  void flush();
  template <class... A>
  void print(fmt::format_string<A...> format, A&&... args) {
    write(fmt::format(format, std::forward<A>(args)...));
  }
};

// The whole of a small file, or of standard input for "-". Throws Error; more than `limit` bytes is an error too.
std::string read_text_argument(const std::string& path, int64_t limit = int64_t{1} << 30);

int run_tool(int argc, char** argv, const ToolInfo& info, const std::function<void(CLI::App&)>& setup,
             const std::function<int(Tool&)>& body);

}  // namespace megaslide
