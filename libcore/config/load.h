// Reading and writing configurations. Every finding has its place: "configs/a.yaml:12:7: train.learning_rate: expected
// a number > 0, got "abc"", and all findings of a file are thrown together in one usage Error.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "config/machine_config.h"
#include "config/model_config.h"
#include "config/run_config.h"

namespace megaslide {

// A preset's name ("tiny") or a YAML file. A name with a slash or ending in .yaml or .yml is a file.
ModelConfig load_model_config(const std::string& path_or_preset);
MachineConfig load_machine_config(const std::string& path_or_preset);
// "-" reads standard input. `sets` are "key=value", applied in order after the file, with the same checks.
// Checks each value and the relations between keys; not require_for_training, not reject_unsupported.
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& sets = {});

// The same from text; `name` stands in messages.
ModelConfig parse_model_config(std::string_view text, const std::string& name);
MachineConfig parse_machine_config(std::string_view text, const std::string& name);
RunConfig parse_run_config(std::string_view text, const std::string& name, const std::vector<std::string>& sets = {});
// Defaults and `sets` alone, without a file.
RunConfig make_run_config(const std::vector<std::string>& sets);

// YAML that reads back as the same configuration.
std::string to_yaml(const ModelConfig& config);
std::string to_yaml(const MachineConfig& config);
std::string to_yaml(const RunConfig& config);

// "dense" … as attention_kind_name writes it; a usage Error that lists the names otherwise.
AttentionKind parse_attention_kind(const std::string& name);
DsaMode parse_dsa_mode(const std::string& name);

}  // namespace megaslide
