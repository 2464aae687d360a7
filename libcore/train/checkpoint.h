// Checkpoints of a run (spec engine.md §6): OUTPUT/checkpoints/step-%08d/, a model directory whose files also hold masters
// and moments, and OUTPUT/latest, a link to the newest. A kill at any instant leaves the previous checkpoint whole.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "config/model_config.h"
#include "io/model_directory.h"
#include "stream/host_store.h"

namespace megaslide {

// What the samples of a run are made of, small enough for a manifest: enough to see that a cache has changed, and how much.
struct DataKeys {
  std::string sha256;            // of all keys, in order; empty: not known
  int64_t count = 0;
  std::vector<uint32_t> hashes;  // of each key, in order; none where there are very many
};
DataKeys data_keys(const std::vector<std::string>& keys);
// "3 samples are gone, 1 is new"; empty where they are the same, or one side is not known.
std::string data_difference(const DataKeys& before, const DataKeys& now);

// What a checkpoint holds beside the parameters' state.
struct RunState {
  int64_t step = 0;     // training steps done, skipped ones included: names the folder
  int64_t position = -1;  // microbatches that they took from the data; -1: not recorded
  int64_t updates = 0;  // optimizer updates: Adam's step, and the step of the state's hash
  int64_t seed = 0;     // all that the counter-based generators need beside the step
  std::vector<std::string> config;  // canonical lines of the run's configuration
  DataKeys data;
};

std::string to_json(const RunState& state);
RunState parse_run_state(const std::string& text, const std::string& source);

// Bytes of one checkpoint, headers left out.
int64_t checkpoint_bytes(const HostStore& store);

class CheckpointFolder {
 public:
  // Removes what a killed run left half-written, and reports it through the log.
  explicit CheckpointFolder(const std::string& output_dir);

  // Path of the checkpoint written last: where OUTPUT/latest points, else the one of the highest step.
  std::optional<std::string> latest() const;
  std::vector<std::string> all() const;  // by step
  // What a run may go on from, best first: where OUTPUT/latest points, then those of lower steps, also folders that turn
  // out to be no checkpoint any more.
  std::vector<std::string> candidates() const;
  // Writes, hashes, fsyncs, renames, moves `latest`, then removes the oldest beyond `limit` (0: keeps all); the newest two
  // always stay. Those of higher steps, which a run resumed from an older checkpoint has left behind, neither count nor
  // go: they are replaced when the run comes to their step. Free space is checked before the first byte. Throws Error.
  std::string save(const HostStore& store, const ModelManifest& like, const RunState& state, int64_t limit, ThreadPool& pool) const;

 private:
  void rotate(const std::string& newest, int64_t limit) const;
  std::string output_dir_, directory_;
};

// Throws Error that says which checkpoint to use instead where this is none, or a damaged one.
ModelDirectory open_checkpoint(const std::string& path);

// Names every difference, and which checkpoint to use instead.
Error damaged_checkpoint(const std::string& path, const std::vector<ModelDirectory::Difference>& differences);

// Opens and hashes. Throws Error naming every file that differs.
ModelDirectory open_whole_checkpoint(const std::string& path, ThreadPool& pool);
// The same, and loads.
RunState load_checkpoint(const std::string& path, HostStore& store, ThreadPool& pool);

// The hash that `shard-weights --hash` gives for a checkpoint of this state.
std::string state_hash(const HostStore& store, const RunState& state, ThreadPool& pool);

}  // namespace megaslide
