// The model directory: manifest.json and one safetensors file for the embedding, each layer and the head, with the full
// diffusers names inside and the tensor data 4 KiB aligned. A checkpoint of a training run has the same form; its
// files also hold the masters and moments of each parameter:
//   NAME             BF16 (or the model's own dtype)  weight
//   NAME.master      F32                              fp32 master, or instead of it
//   NAME.master_low  I16                              r of the split codec: bits of the master = (weight << 16) + r
//   NAME.exp_avg, NAME.exp_avg_sq   F32 or BF16       Adam's moments, or levels (tensor/moment_levels.h): I8 and U8 with
//   NAME.exp_avg_scale, NAME.exp_avg_sq_scale  F32    a scale for each block
//
// manifest.json: {"format": "megaslide-model", "version": 1, "config": {…}, "dtype": "BF16"|"F32"|"F16"|"mixed",
//   "parameters": n, "files": [{"name", "bytes", "sha256"}…], "source": {…}, "state": {…} (checkpoints only), "digest": SHA-256 of the rest}
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "base/stop.h"
#include "base/thread_pool.h"
#include "config/model_config.h"
#include "io/safetensors.h"

namespace megaslide {

struct ManifestFile {
  std::string name;  // relative, '/' between folders
  int64_t bytes = 0;
  std::string sha256;
};

// Where the weights came from; what an export needs to give back the same files.
struct ModelSource {
  std::string layout;       // "diffusers", "wan", "init"
  std::string path;         // last component of what was imported, or the preset's name
  std::string prefix;       // of a repack
  std::string config_json;  // text of the source's config.json, or empty
  std::optional<uint64_t> seed;  // of "init"
  std::string network;      // of a checkpoint of one of two networks: "transformer" (high noise) or "transformer_2"
  std::string parts;        // of a checkpoint: the model directory whose codec, text encoder and second network go with it
};

struct ModelManifest {
  ModelConfig config;
  std::string dtype;
  int64_t parameters = 0;
  std::vector<ManifestFile> files;  // sorted by name
  ModelSource source;
  std::string state;  // a checkpoint's state as JSON text ("step", "rng", …); empty for a model
  bool digest_ok = true;  // read back: the text agrees with the digest written into it
};

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kEmbedFile = "embed.safetensors";
inline constexpr const char* kHeadFile = "head.safetensors";
inline constexpr const char* kSecondNetworkFolder = "transformer_2";
std::string layer_file_name(int64_t layer);  // "layer-007.safetensors"

// Reading. Copies share the open files.
class ModelDirectory {
 public:
  // Checks the manifest and that every file is there with its size; no hash. Throws Error.
  static ModelDirectory open(const std::string& path);
  // Reads the manifest alone: for verify(), which reports files that are absent or cut short as differences.
  static ModelDirectory open_unchecked(const std::string& path);
  // True when `path` is a folder with a manifest.json of ours.
  static bool is_one(const std::string& path);

  const std::string& path() const { return path_; }
  const ModelManifest& manifest() const { return *manifest_; }
  const ModelConfig& config() const { return manifest_->config; }
  int64_t layers() const { return config().layers; }
  bool is_checkpoint() const { return !manifest_->state.empty(); }

  // Open (map) a file and check that it holds exactly the parameters of its part of the network, with their shapes,
  // beside masters and moments. Not cached: keep the result while views into it are used.
  SafetensorsFile embed() const;
  SafetensorsFile layer(int64_t i) const;
  SafetensorsFile head() const;
  // All three kinds by one index: -1 the embedding, 0 … layers-1, layers the head.
  SafetensorsFile part(int64_t index) const;
  // A file of a component that came along ("vae/config.json"); empty when there is none.
  std::string component(const std::string& name) const;
  // The folder that holds vae/, text_encoder/, tokenizer/ and transformer_2/: this one, or for a checkpoint the model that
  // it was trained from. Empty where neither holds any.
  std::string parts_folder() const;
  // True where a second network lies inside, in the model directory transformer_2/ (Wan 2.2 A14B).
  bool has_second() const;
  ModelDirectory second() const;

  struct Difference {
    std::string name, what;  // "layer-003.safetensors", "content differs"
  };
  // Recomputes every hash, in parallel over files, and the manifest's own digest; those of a second network too, under
  // names such as "transformer_2/head.safetensors". Empty: all as the manifests say.
  std::vector<Difference> verify(ThreadPool& pool, StopToken stop = {}) const;

 private:
  std::string path_;
  std::shared_ptr<const ModelManifest> manifest_;
};

// Writing, beside the final place; what was there before stays until commit(). Methods may be called from several
// threads for different files.
class ModelDirectoryWriter {
 public:
  // `bytes`: what will be written in all; refused with an Error before the first byte where the disk has less (0: not
  // checked). `replace`: an existing directory is exchanged at commit; otherwise it is an Error now.
  ModelDirectoryWriter(const std::string& path, const ModelConfig& config, bool replace, int64_t bytes);

  using Sink = std::function<void(std::span<const std::byte>)>;
  // Writes one safetensors file; `provide(i, sink)` hands over the bytes of entries[i], in any number of pieces.
  void write_file(const std::string& name, const std::vector<SafetensorsEntry>& entries,
                  const std::function<void(size_t index, const Sink& sink)>& provide);
  // The same for a part that goes along ("vae/diffusion_pytorch_model.safetensors"): its tensors are no parameters,
  // and with entries in the format's order its bytes are those of the reference writer.
  void write_part_file(const std::string& name, const std::vector<SafetensorsEntry>& entries,
                       const std::function<void(size_t index, const Sink& sink)>& provide);
  void write_text(std::string_view text, const std::string& name);
  void copy_file(const std::string& from, const std::string& name);  // "vae/config.json"
  // A model directory inside this one, the second network: written by its own writer to nested_path(), committed, then
  // listed here by its manifest.
  std::string nested_path(const std::string& name) const { return directory_.file(name); }
  void adopt_nested(const std::string& name);
  void set_source(ModelSource source) { manifest_.source = std::move(source); }
  void set_state(std::string json) { manifest_.state = std::move(json); }
  void commit();  // writes the manifest last, fsyncs, renames

 private:
  std::string place(const std::string& name) const;  // with its folder made
  void write_tensors(const std::string& name, const std::vector<SafetensorsEntry>& entries, int64_t alignment,
                     const std::function<void(size_t index, const Sink& sink)>& provide);
  void add_file(ManifestFile file);

  AtomicDirectory directory_;
  ModelManifest manifest_;
  std::mutex mutex_;
};

// The text of manifest.json, and back. `source` names it in messages.
std::string manifest_to_text(const ModelManifest& manifest);
ModelManifest parse_manifest(const std::string& text, const std::string& source);

// True for NAME.master, NAME.master_low, NAME.exp_avg, NAME.exp_avg_sq and the scales of these.
bool is_state_tensor(const std::string& name);

}  // namespace megaslide
