// One case of cases.json: what it expects, how it runs the programs, and what came out.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace megaslide::cases {

using Json = nlohmann::json;

struct RunLimits {
  double seconds = 120;                      // then it is killed and the case fails
  int64_t address_space = 0;                 // bytes; 0: unlimited
  std::string folder = {};                   // working directory; empty: the case's own
  std::function<bool()> kill_when = {};      // polled; true: SIGKILL
  int64_t file_size = 0;                     // RLIMIT_FSIZE in bytes; 0: unlimited
};

struct RunResult {
  int status = -1;  // exit status; -1 when it ended by a signal
  int signal = 0;
  bool timed_out = false;
  double seconds = 0;
  std::string out, err;
  std::string both() const { return out + err; }
  bool says(const std::string& text) const { return both().find(text) != std::string::npos; }
  Json json() const;  // of standard output; null where it is none
  std::string line(const std::string& text) const;  // the first line of standard error that holds `text`
};

class Case {
 public:
  Case(const Json& spec, std::string data, std::string programs, std::string work, std::string models)
      : spec_(spec), data_(std::move(data)), programs_(std::move(programs)), work_(std::move(work)), models_(std::move(models)) {}

  std::string id() const { return spec_.at("id"); }
  const Json& check() const { return spec_.at("check"); }
  const Json& oracle() const { return spec_.at("oracle"); }
  std::string file(size_t i = 0) const { return data_ + "/" + spec_.at("files").at(i).get<std::string>(); }
  const std::string& data() const { return data_; }
  const std::string& work() const { return work_; }
  std::string work(const std::string& name) const { return work_ + "/" + name; }
  std::string model() const { return models_ + "/model"; }            // a tiny model directory, as initialised
  std::string trained() const { return models_ + "/run/latest"; }      // after a few steps: its output depends on the prompt
  std::string program(const std::string& name) const { return programs_ + "/" + name; }

  // PROGRAM ARGUMENTS...; a program without a slash is one of ours.
  RunResult run(std::vector<std::string> command, const RunLimits& given = {});
  std::string copy(const std::string& from, const std::string& name);  // writable, into work()

  bool expect(bool holds, const std::string& what);
  void expect_status(const RunResult& r, int status, const std::string& what);
  void expect_says(const RunResult& r, const std::string& text);
  void saw(const std::string& what);  // for the table

  bool passed() const { return problems_.empty(); }
  const std::vector<std::string>& problems() const { return problems_; }
  std::string seen() const;

 private:
  const Json& spec_;
  std::string data_, programs_, work_, models_;
  std::vector<std::string> problems_, seen_;
};

using CaseFunction = void (*)(Case&);
using CaseTable = std::map<std::string, CaseFunction>;
void add_video_cases(CaseTable& table);
void add_dataset_cases(CaseTable& table);
void add_table_cases(CaseTable& table);
void add_cache_cases(CaseTable& table);
void add_checkpoint_cases(CaseTable& table);
void add_sampling_cases(CaseTable& table);
void add_trainer_cases(CaseTable& table);
void add_evaluation_cases(CaseTable& table);

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);
bool ends_with(const std::string& text, const std::string& end);

}  // namespace megaslide::cases
