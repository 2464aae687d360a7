#include "bench_dsa_modes.h"

#include <algorithm>
#include <filesystem>

#include "attention_check/check.h"
#include "attention_check/emulated.h"
#include "base/error.h"
#include "base/log.h"

namespace megaslide {
namespace {

// The case, or all cases of a folder.
std::vector<std::string> cases_of(const std::string& path) {
  std::error_code failure;
  if (!std::filesystem::is_directory(path, failure)) return {path};
  std::vector<std::string> cases;
  for (const auto& e : std::filesystem::directory_iterator(path, failure))
    if (e.path().extension() == ".safetensors") cases.push_back(e.path().string());
  if (failure || cases.empty()) throw Error(path + ": holds no stored case (.safetensors)", "name a case, or a folder of cases");
  std::sort(cases.begin(), cases.end());
  return cases;
}

}  // namespace

int check(Tool& tool, const std::vector<std::string>& files, const std::string& only, bool emulated) {
  InlineStream stream(tool.flags.threads);
  bool ok = true;
  for (const std::string& path : cases_of(files[0])) {
    const StoredCase c = load_stored_case(path, files.size() > 1 ? files[1] : case_json_path(path));
    std::vector<KernelCheck> results = check_case(c, stream, only);
    if (emulated)
      for (KernelCheck& k : check_emulated(c, stream)) results.push_back(std::move(k));
    for (const KernelCheck& result : results) {
      tool.print("{}\n", to_json_line(result));
      ok = ok && result.ok;
    }
    tool.flush();
  }
  return ok ? 0 : 3;
}

std::vector<BenchRow> measure(Tool& tool, const std::vector<std::string>& ops, const BenchOptions& options, int64_t doublings) {
  const MachinePeaks peaks = measure_peaks(options.dtype, options.threads);
  std::vector<BenchRow> rows;
  if (!tool.flags.json) tool.print("{}\n", table_header());
  for (const std::string& op : ops) {
    BenchOptions o = options;
    for (int64_t i = 0; i <= doublings; ++i, o.grid[0] *= 2) {
      try {
        rows.push_back(bench_operator(op, o, peaks));
      } catch (const Error& e) {
        if (i == 0) throw;
        log_warning("{}", e.message());
        break;
      }
      tool.print("{}\n", tool.flags.json ? to_json_line(rows.back()) : to_table_line(rows.back()));
      tool.flush();
    }
  }
  return rows;
}

}  // namespace megaslide
