#include "config/load.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/error.h"
#include "config/nearest.h"
#include "config/schemas.h"
#include "config/search_path.h"

namespace megaslide {
namespace {

bool names_a_file(const std::string& s) {
  const auto ends_with = [&](std::string_view end) { return s.size() >= end.size() && s.compare(s.size() - end.size(), end.size(), end) == 0; };
  return s == "-" || s.find('/') != std::string::npos || ends_with(".yaml") || ends_with(".yml");
}

// The file behind a preset's name or a path. `kind` is "models" or "machines".
std::string resolve(const std::string& kind, const std::string& name) {
  if (names_a_file(name)) return name;
  if (const std::string file = find_preset(kind, name); !file.empty()) return file;
  std::error_code error;
  if (std::filesystem::is_regular_file(name, error)) return name;
  const std::vector<std::string> names = preset_names(kind);
  const std::string near = nearest_name(name, names);
  const std::string singular = kind.substr(0, kind.size() - 1);
  throw usage_error(fmt::format("{}: no such {} preset or file{}", name, singular, near.empty() ? "" : "; did you mean " + near + "?"),
                    names.empty() ? "no presets are installed beside this program: give a YAML file"
                                  : fmt::format("give a YAML file or one of {}", fmt::join(names, ", ")));
}

void check_model(const ModelConfig& c, ConfigErrors& errors, const Places& places) {
  for (const char* required : {"dim", "heads", "ffn_dim", "layers"}) {
    const int64_t value = required[0] == 'd' ? c.dim : required[0] == 'h' ? c.heads : required[0] == 'f' ? c.ffn_dim : c.layers;
    if (value == 0) places.report(errors, required, "required, but not given");
  }
  if (!errors.empty()) return;
  for (const std::string& finding : model_config_errors(c)) {
    const size_t colon = finding.find(": ");
    places.report(errors, finding.substr(0, colon), finding.substr(colon + 2));
  }
}

// Keys that do nothing beside the others are an error: whoever wrote them expects something of them.
void check_objective(const RunConfig& c, ConfigErrors& errors, const Places& places) {
  const RunConfig::Train& t = c.train;
  if (t.min_timestep >= t.max_timestep)
    places.report(errors, "train.max_timestep", fmt::format("expected more than train.min_timestep ({}), got {}", t.min_timestep, t.max_timestep));
  if (t.timestep_sampling == TimestepSampling::kSigmoid && t.flow_shift)
    places.report(errors, "train.flow_shift", "sigmoid is not shifted: set train.timestep_sampling to shift");
  if (!c.data.replay.empty() && t.max_train_epochs > 0)
    places.report(errors, "train.max_train_epochs", "stored batches are replayed once: set train.max_train_steps");
}

void check_run(const RunConfig& c, ConfigErrors& errors, const Places& places) {
  if (!c.data.cache.empty() && !c.data.replay.empty())
    places.report(errors, "data.replay", "data.cache and data.replay exclude each other");
  check_objective(c, errors, places);
  if (c.data.num_repeats.size() > 1 && c.data.num_repeats.size() != c.data.cache.size())
    places.report(errors, "data.num_repeats", fmt::format("expected one number, or one a cache ({}), got {}", c.data.cache.size(), c.data.num_repeats.size()));
  if (c.data.batch_tokens > 0 && c.data.batch_size != 1)
    places.report(errors, "data.batch_tokens", "data.batch_size and data.batch_tokens exclude each other");
  if (c.stream.link == RunConfig::Link::kShared && c.stream.link_bandwidth != 0)
    places.report(errors, "stream.link.bandwidth", "only an emulated link has a bandwidth: set stream.link.kind to emulated");
  if (c.sample.num_frames && *c.sample.num_frames % 4 != 1)
    places.report(errors, "sample.num_frames", fmt::format("expected 4k+1, got {}", *c.sample.num_frames));
}

void check_machine(const MachineConfig& c, ConfigErrors& errors, const Places& places) {
  if (c.host_memory == 0) places.report(errors, "host.memory", "required, but not given");
  if (!c.unified && c.device_memory == 0) places.report(errors, "compute.memory", "required where the device has its own memory");
  if (c.link_both != 0 && c.link_both < std::max(c.link_up, c.link_down))
    places.report(errors, "link.both", "expected at least link.up and link.down: it is the sum of both ways at once");
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& name) {
  ModelConfig config;
  config.name = std::filesystem::path(name).stem().string();
  ConfigErrors errors(name);
  Places places;
  read_tree(parse_yaml(text, name), model_schema(config), errors, places);
  if (errors.empty()) check_model(config, errors, places);
  errors.throw_if_any("megaslide-model");
  return config;
}

MachineConfig parse_machine_config(std::string_view text, const std::string& name) {
  MachineConfig config;
  config.name = std::filesystem::path(name).stem().string();
  ConfigErrors errors(name);
  Places places;
  read_tree(parse_yaml(text, name), machine_schema(config), errors, places);
  if (errors.empty()) check_machine(config, errors, places);
  errors.throw_if_any("megaslide-config");
  return config;
}

RunConfig parse_run_config(std::string_view text, const std::string& name, const std::vector<std::string>& sets) {
  RunConfig config;
  const Schema schema = run_schema(config);
  ConfigErrors errors(name);
  Places places;
  read_tree(parse_yaml(text, name), schema, errors, places);
  for (const std::string& set : sets) apply_set(set, schema, errors, places);
  if (errors.empty()) check_run(config, errors, places);
  errors.throw_if_any("megaslide-config");
  return config;
}

RunConfig make_run_config(const std::vector<std::string>& sets) {
  RunConfig config;
  const Schema schema = run_schema(config);
  ConfigErrors errors("--set");
  Places places;
  for (const std::string& set : sets) apply_set(set, schema, errors, places);
  if (errors.empty()) check_run(config, errors, places);
  errors.throw_if_any("megaslide-config");
  return config;
}

ModelConfig load_model_config(const std::string& path_or_preset) {
  const std::string file = resolve("models", path_or_preset);
  return parse_model_config(read_yaml_file(file), file == "-" ? "standard input" : file);
}

MachineConfig load_machine_config(const std::string& path_or_preset) {
  const std::string file = resolve("machines", path_or_preset);
  return parse_machine_config(read_yaml_file(file), file == "-" ? "standard input" : file);
}

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& sets) {
  return parse_run_config(read_yaml_file(path), path == "-" ? "standard input" : path, sets);
}

// The schema binds variables to read into; writing leaves them alone.
std::string to_yaml(const ModelConfig& config) {
  ModelConfig copy = config;
  return write_tree(model_schema(copy), "");
}

std::string to_yaml(const MachineConfig& config) {
  MachineConfig copy = config;
  return write_tree(machine_schema(copy), "");
}

std::string to_yaml(const RunConfig& config) {
  RunConfig copy = config;
  return write_tree(run_schema(copy), "");
}

namespace {
template <class E>
E parse_word(const std::string& name, const Schema::Words<E>& words, const char* what) {
  std::string known;
  for (const auto& [word, value] : words) {
    if (word == name) return value;
    known += (known.empty() ? "" : ", ") + word;
  }
  throw usage_error(fmt::format("{}: expected one of {}, got \"{}\"", what, known, name));
}
}  // namespace

AttentionKind parse_attention_kind(const std::string& name) { return parse_word(name, attention_words(), "attention"); }
DsaMode parse_dsa_mode(const std::string& name) { return parse_word(name, dsa_mode_words(), "dsa mode"); }

}  // namespace megaslide
