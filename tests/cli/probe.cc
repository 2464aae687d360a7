// A program with nothing of its own: what run_tool does, made visible to common.sh.
#include <chrono>
#include <thread>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "common/flags.h"
#include "common/run_tool.h"
#include "config/search_path.h"

using namespace megaslide;

namespace {

void fail_as(const std::string& kind) {
  if (kind == "failure") throw Error("it broke", "mend it").add_context("layer 3");
  if (kind == "usage") throw usage_error("wrong");
  if (kind == "no") throw Error("does not fit", "less", ErrorKind::kNo);
  if (kind == "memory") throw std::bad_alloc();
  if (kind == "other") throw std::runtime_error("surprise");
}

void wait_for_stop(Tool& tool, const std::string& how) {
  for (int i = 0; i < 600 && !tool.stop.requested(); ++i) {
    if (i == 0) log_info("waiting");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (how == "throw") tool.stop.throw_if_requested();
  if (how == "stubborn") std::this_thread::sleep_for(std::chrono::seconds(30));
  tool.print("finished the step\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::string word, fail, wait, read;
  int64_t lines = 0, status = 0, work = 0, size_w = 0, size_h = 0, bytes = -1;
  double number = 0;
  std::array<int64_t, 3> grid{};
  const ToolInfo info{.name = "probe", .summary = "Does nothing.", .examples = {"probe word"},
                      .flags = kDeviceFlag | kSimDevice | kComputeDtypeFlag | kThreadsFlag | kSeedFlag | kGracefulStop};
  const auto setup = [&](CLI::App& app) {
    app.add_option("WORD", word, "A word")->group("Input");
    app.add_option("--read", read, "A file to count")->group("Input");
    app.add_option("--fail", fail, "How to fail")->group("Work");
    app.add_option("--wait", wait, "Wait for a signal, and then")->group("Work");
    add_integer(app, "--lines", lines, 0, 1000000000, "Lines to print")->group("Output");
    add_integer(app, "--status", status, 0, 255, "What to return")->group("Output");
    add_integer(app, "--work", work, 0, 1000, "Pieces of work to report")->group("Output");
    add_number(app, "--number", number, 0, 1, "A number")->group("Work");
    add_size(app, "--size", size_w, size_h, "A size")->group("Work");
    add_grid(app, "--grid", grid, "A grid")->group("Work");
    add_bytes(app, "--bytes", bytes, "Bytes")->group("Work");
  };
  return run_tool(argc, argv, info, setup, [&](Tool& tool) {
    log_debug("a detail");
    log_info("a note");
    log_warning("a warning");
    fail_as(fail);
    if (!wait.empty()) wait_for_stop(tool, wait);
    if (!read.empty()) tool.print("{} bytes\n", read_text_argument(read).size());
    for (int64_t i = 0; i < lines; ++i) tool.print("line {} {}\n", i, word);
    if (work > 0) {
      Progress progress("working", static_cast<double>(work), "pieces");
      for (int64_t i = 0; i < work; ++i) progress.add(1, "piece\n" + std::to_string(i));
    }
    if (tool.flags.json)
      tool.print("{{\"threads\": {}, \"seed\": {}, \"device\": \"{}\", \"dtype\": \"{}\", \"size\": [{}, {}], \"grid\": [{}, {}, {}], \"bytes\": {}, \"presets\": {}}}\n",
                 tool.flags.threads, tool.flags.seed ? std::to_string(*tool.flags.seed) : "null", tool.flags.device, tool.flags.compute_dtype, size_w, size_h,
                 grid[0], grid[1], grid[2], bytes, preset_names("models").size());
    return static_cast<int>(status);
  });
}
