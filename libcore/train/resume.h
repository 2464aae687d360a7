// Where a run goes on: which checkpoint, and whether it is one of the same run.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "train/checkpoint.h"

namespace megaslide {

// A usage Error where a name is no configuration key.
void check_allowed_changes(const std::vector<std::string>& allowed);

// A whole checkpoint that a run of `now` goes on from.
struct ResumePoint {
  ModelDirectory directory;
  RunState state;
};

// Follows run.output.resume_from_checkpoint; nothing: a new run. "latest" passes over checkpoints that are damaged, with a
// warning that names what is wrong with each. Throws Error where none is whole, where the configuration or the data differ
// beyond `allowed` (what differs and is allowed goes to the log), or where a new run would write among another's
// checkpoints.
std::optional<ResumePoint> find_resume_point(const RunConfig& run, const RunState& now, const CheckpointFolder& folder,
                                             const std::vector<std::string>& allowed, ThreadPool& pool);

// Error naming the parameters that hold NaN or infinity: training could only spread them.
void require_finite_weights(const HostStore& store, const std::string& source, ThreadPool& pool);

}  // namespace megaslide
