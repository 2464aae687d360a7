// experiments-report: one page of what the experiments' recipes found.
#include <filesystem>

#include <CLI/CLI.hpp>

#include "base/atomic_file.h"
#include "common/run_tool.h"
#include "experiment.h"

using namespace megaslide;

int main(int argc, char** argv) {
  std::string folder, claims_path;
  const ToolInfo info{.name = "experiments-report",
                      .summary = "Puts the paper's claims beside what the recipes of configs/experiments found: report.html, claims.md and plots/*.svg in FOLDER.",
                      .examples = {"experiments-report build/experiments --claims configs/experiments/claims.json"}};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("FOLDER", folder, "Where the recipes left TARGET.json")->required()->group("Input");
    app.add_option("--claims", claims_path, "The paper's claims")->required()->group("Input");
  }, [&](Tool& tool) {
    const std::vector<Claim> claims = read_claims(claims_path);
    const std::vector<ExperimentResult> results = read_results(folder);
    std::vector<JudgedClaim> judged;
    judged.reserve(claims.size());
    for (const Claim& c : claims) judged.push_back(judge(c, results));
    std::vector<std::vector<std::string>> charts;
    make_directories(folder + "/plots");
    for (const ExperimentResult& r : results) {
      std::vector<std::string> drawn;
      for (const auto& chart : r.charts) {
        drawn.push_back(chart_svg(chart, folder));
        write_file_atomic(fmt::format("{}/plots/{}.svg", folder, chart.at("name").get<std::string>()), drawn.back());
      }
      charts.push_back(std::move(drawn));
    }
    const std::string table = claims_markdown(judged);
    write_file_atomic(folder + "/claims.md", table);
    write_file_atomic(folder + "/report.html", report_page(results, judged, charts, folder));
    tool.print("{}", table);
    return 0;
  });
}
