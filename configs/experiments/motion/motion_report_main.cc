// motion-report: what the runs of the motion experiment say.
#include <CLI/CLI.hpp>

#include "base/atomic_file.h"
#include "common/run_tool.h"
#include "motion_report.h"

using namespace megaslide;

int main(int argc, char** argv) {
  std::string folder;
  const ToolInfo info{.name = "motion-report",
                      .summary = "Reads the runs of the motion experiment, prints the report, and writes report.md and curves.svg beside them.",
                      .examples = {"motion-report build/motion"}};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("FOLDER", folder, "Where the experiment's Makefile left its runs")->required()->group("Input");
  }, [&](Tool& tool) {
    const MotionExperiment experiment = read_experiment(folder);
    const std::string report = motion_report(experiment);
    write_file_atomic(folder + "/report.md", report);
    write_file_atomic(folder + "/curves.svg", motion_chart(experiment));
    tool.print("{}", report);
    return 0;
  });
}
