#include "config/run_config.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/sha256.h"
#include "config/schemas.h"

namespace megaslide {
namespace {

std::map<std::string, std::string> by_key(const std::vector<std::string>& lines) {
  std::map<std::string, std::string> m;
  for (const std::string& line : lines) {
    const size_t equals = std::min(line.find('='), line.size());
    m[line.substr(0, equals)] = line.substr(std::min(equals + 1, line.size()));
  }
  return m;
}

void throw_listed(const std::string& heading, const std::vector<std::string>& lines, const std::string& remedy) {
  if (lines.empty()) return;
  std::string text = heading;
  for (const std::string& line : lines) text += "\n  " + line;
  throw usage_error(text, remedy);
}

}  // namespace

ModelConfig with_overrides(const ModelConfig& model, const RunConfig& run) {
  ModelConfig c = model;
  if (run.model.attention) {
    c.attention.kind = *run.model.attention;
    c.attention.per_layer.clear();
  }
  const RunConfig::Dsa& d = run.model.dsa;
  if (d.kernel) c.attention.dsa.kernel = *d.kernel;
  if (d.reach) c.attention.dsa.reach = *d.reach;
  if (d.mode) c.attention.dsa.mode = *d.mode;
  if (d.groups) c.attention.dsa.groups = *d.groups;
  if (d.offsets) c.attention.dsa.offsets = *d.offsets;
  if (d.motion_share) c.attention.dsa.motion_share = *d.motion_share;
  if (d.pooled) c.attention.dsa.pooled = *d.pooled;
  const auto& windows = c.attention.dsa.windows;
  const auto has_effect = [&](bool given, const char* key, auto member) {
    if (given && !windows.empty() && std::all_of(windows.begin(), windows.end(), [&](const DsaHeadWindow& w) { return (w.*member).has_value(); }))
      throw usage_error(fmt::format("{} changes nothing: every window of model {} has its own", key, c.name), "change dsa.windows of the model");
  };
  has_effect(d.kernel.has_value(), "model.dsa.kernel", &DsaHeadWindow::kernel);
  has_effect(d.reach.has_value(), "model.dsa.reach", &DsaHeadWindow::reach);
  has_effect(d.mode.has_value(), "model.dsa.mode", &DsaHeadWindow::mode);
  has_effect(d.groups.has_value(), "model.dsa.groups", &DsaHeadWindow::groups);
  validate(c);
  return c;
}

void reject_unsupported(const RunConfig& run) {
  using R = RunConfig;
  std::vector<std::string> lines;
  const auto reject = [&](bool asked, const char* what, const char* instead) {
    if (asked) lines.push_back(fmt::format("{} is not supported by this version; supported: {}", what, instead));
  };
  reject(run.optimizer.masters == R::Masters::kBf16StochasticRounding && run.model.compute_dtype == R::ComputeDtype::kFp32,
         "optimizer.masters: bf16-sr with model.compute_dtype: fp32", "bf16-sr with bf16, split or fp32 with either");
  reject(run.optimizer.device == R::OptimizerDevice::kDevice && run.stream.tier == R::Tier::kNvme, "optimizer.device: device with stream.tier: nvme",
         "cpu with either, device with ram");
  reject(run.model.fp8_forward && run.model.compute_dtype == R::ComputeDtype::kFp32, "model.fp8_forward with model.compute_dtype: fp32", "either alone");
  // The rows of a call share a scale: slab by slab they would not be the whole clip's.
  reject(run.model.fp8_forward && run.stream.slabs > 0, "model.fp8_forward with stream.slabs", "either alone");
  throw_listed("the configuration asks for what this version cannot run:", lines, "change the keys named above, in the file or with --set");
}

void require_for_training(const RunConfig& run) {
  std::vector<std::string> lines;
  if (run.model.path.empty()) lines.push_back("model.path: the model directory to train");
  if (run.data.cache.empty() && run.data.replay.empty()) lines.push_back("data.cache: a cache made by encode-clips (or data.replay: stored batches)");
  if (run.output.output_dir.empty()) lines.push_back("output.output_dir: where checkpoints and metrics go");
  throw_listed("the configuration lacks what training needs:", lines, "add the keys to the file, or give them with --set key=value");
}

std::vector<std::string> canonical_lines(const RunConfig& run) {
  RunConfig copy = run;  // the schema binds variables to read into; writing leaves them alone
  std::vector<std::string> lines;
  const Schema schema = run_schema(copy);
  for (const Key& key : schema.keys())
    if (key.in_digest) lines.push_back(key.path + "=" + key.write());
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string config_digest(const RunConfig& run) {
  std::string text;
  for (const std::string& line : canonical_lines(run)) text += line + "\n";
  return sha256_hex(text);
}

std::vector<std::string> differing_keys(const std::vector<std::string>& before, const std::vector<std::string>& now) {
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  std::map<std::string, std::string> old = by_key(before), current = by_key(now);
  std::vector<std::string> lines;
  for (const auto& [key, value] : old)
    if (const auto it = current.find(key); it == current.end() || it->second != value)
      lines.push_back(fmt::format("{}: was {}, is {}", key, shown(value), it == current.end() ? "not set" : shown(it->second)));
  for (const auto& [key, value] : current)
    if (old.count(key) == 0 && !value.empty()) lines.push_back(fmt::format("{}: was not set, is {}", key, value));
  return lines;
}

std::vector<std::string> run_config_keys() {
  RunConfig config;
  const Schema schema = run_schema(config);
  std::vector<std::string> keys;
  for (const Key& key : schema.keys()) keys.push_back(key.path);
  return keys;
}

std::vector<std::string> machine_config_keys() {
  MachineConfig config;
  const Schema schema = machine_schema(config);
  std::vector<std::string> keys;
  for (const Key& key : schema.keys()) keys.push_back(key.path);
  return keys;
}

}  // namespace megaslide
