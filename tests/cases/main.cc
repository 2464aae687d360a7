// Runs every case of cases.json through the built programs and prints a table: case, what happened, whether that is as
// written. Usage: cases_driver FOLDER BIN-DIR [ID...]; the environment variable MEGASLIDE_CASES replaces FOLDER.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include "case.h"

namespace {

namespace fs = std::filesystem;
using namespace megaslide::cases;

struct Row {
  const Json* spec = nullptr;
  CaseFunction function = nullptr;
  std::string seen;
  std::vector<std::string> problems;
};

void run_case(Row& row, const std::string& data, const std::string& programs, const std::string& root) {
  const std::string id = row.spec->at("id");
  Case c(*row.spec, data, programs, root + "/" + id, root);
  fs::create_directories(c.work());
  try {
    if (row.function == nullptr) c.expect(false, "this driver does not know the case");
    else row.function(c);
  } catch (const std::exception& e) {
    c.expect(false, e.what());
  }
  row.seen = c.seen();
  row.problems = c.problems();
}

// A tiny model, and what a few steps on the clips of train/ make of it.
bool make_models(const std::string& data, const std::string& programs, const std::string& root) {
  const Json spec = {{"id", "models"}};
  Case c(spec, data, programs, root, root);
  c.expect_status(c.run({"shard-weights", "--init", "tiny", "-o", "model", "--seed", "1", "-q"}), 0, "shard-weights");
  c.expect_status(c.run({"encode-clips", data + "/train/clips", "-o", "cache", "--model", "model", "--num-frames", "5", "--size", "32x32", "-q"}), 0, "encode-clips");
  write_text(root + "/run.yaml", "model: {path: model}\ndata: {cache: cache}\ntrain: {max_train_steps: 15}\noptimizer: {learning_rate: 3e-3}\noutput: {output_dir: run}\n");
  c.expect_status(c.run({"finetune", "run.yaml", "-q"}), 0, "finetune");
  for (const std::string& p : c.problems()) std::fprintf(stderr, "%s\n", p.c_str());
  return c.passed();
}

// Starts as many cases at a time as there are processors; each program may use all of them.
void run_all(std::vector<Row>& rows, const std::string& data, const std::string& programs, const std::string& root) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < std::max(2u, std::thread::hardware_concurrency()); ++t)
    workers.emplace_back([&] {
      for (size_t i = next++; i < rows.size(); i = next++) run_case(rows[i], data, programs, root);
    });
  for (std::thread& w : workers) w.join();
}

size_t print(const std::vector<Row>& rows) {
  size_t failed = 0;
  std::printf("| case | what happened | as written |\n|---|---|---|\n");
  for (const Row& r : rows) {
    std::printf("| %s | %s | %s |\n", r.spec->at("id").get<std::string>().c_str(), r.seen.c_str(), r.problems.empty() ? "yes" : "NO");
    failed += r.problems.empty() ? 0 : 1;
  }
  std::printf("\n%zu of %zu cases as written\n", rows.size() - failed, rows.size());
  for (const Row& r : rows)
    for (const std::string& p : r.problems) std::printf("FAILED %s: %s\n", r.spec->at("id").get<std::string>().c_str(), p.c_str());
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: cases_driver FOLDER BIN-DIR [ID...]\n"), 2;
  const char* other = std::getenv("MEGASLIDE_CASES");
  const std::string data = fs::absolute(other != nullptr && *other != 0 ? other : argv[1]).lexically_normal().string();
  const std::string programs = fs::absolute(argv[2]).string();
  ::setenv("LC_ALL", "C", 1);
  CaseTable table;
  for (const auto add : {add_video_cases, add_dataset_cases, add_table_cases, add_cache_cases, add_checkpoint_cases, add_sampling_cases, add_trainer_cases, add_evaluation_cases}) add(table);

  const Json document = Json::parse(read_text(data + "/cases.json"));
  std::vector<Row> rows;
  for (const Json& spec : document.at("cases")) {
    const std::string id = spec.at("id");
    if (argc > 3 && std::find(argv + 3, argv + argc, id) == argv + argc) continue;
    const auto it = table.find(id);
    rows.push_back({&spec, it == table.end() ? nullptr : it->second, {}, {}});
  }
  if (rows.empty()) return std::fprintf(stderr, "no such case\n"), 2;

  std::string root = (fs::temp_directory_path() / "megaslide-cases-XXXXXX").string();
  if (::mkdtemp(root.data()) == nullptr) return std::perror(root.c_str()), 1;
  if (!make_models(data, programs, root)) return 1;
  run_all(rows, data, programs, root);
  const size_t failed = print(rows);
  if (std::getenv("MEGASLIDE_KEEP") != nullptr) std::printf("kept: %s\n", root.c_str());
  else fs::remove_all(root);
  return failed == 0 ? 0 : 1;
}
