#include "train/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <span>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/disk_watch.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "io/json.h"
#include "io/state_hash.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

std::string generator_text(const RunState& state) { return fmt::format("philox4x32-10 seed {}", state.seed); }

bool is_step_name(const std::string& name) {
  return name.size() >= 13 && name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos;
}

// Checkpoints of `directory`, the oldest first. `damaged`: also folders that have no manifest.
std::vector<std::string> checkpoints_in(const std::string& directory, bool damaged = false) {
  std::vector<std::string> paths;
  std::error_code ec;
  for (auto e = fs::directory_iterator(directory, ec); !ec && e != fs::directory_iterator(); e.increment(ec))
    if (is_step_name(e->path().filename().string()) && (ModelDirectory::is_one(e->path().string()) || (damaged && e->is_directory(ec))))
      paths.push_back(e->path().string());
  if (ec) throw system_error("list", directory, ec.value());
  // Eight digits, or more where they do not suffice: a longer name is a higher step.
  std::sort(paths.begin(), paths.end(), [](const std::string& a, const std::string& b) { return std::pair(a.size(), a) < std::pair(b.size(), b); });
  return paths;
}

// What to do where the checkpoint `path` cannot be used.
std::string older_remedy(const std::string& path) {
  std::string older;
  const std::string name = fs::path(path).filename().string();
  std::error_code ec;
  if (is_step_name(name) && fs::is_directory(path, ec))
    for (const auto& p : checkpoints_in(parent_directory(path)))
      if (const std::string other = fs::path(p).filename().string(); std::pair(other.size(), other) < std::pair(name.size(), name)) older = p;
  return older.empty() ? "give another checkpoint with --resume, or start again in another output.output_dir"
                       : fmt::format("resume from an older one: --resume {}", older);
}

std::string hex_of(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (const uint32_t n : numbers) text += fmt::format("{:08x}", n);
  return text;
}
std::vector<uint32_t> numbers_of(const std::string& hex) {
  std::vector<uint32_t> numbers;
  for (size_t i = 0; i + 8 <= hex.size(); i += 8) {
    uint32_t n = 0;
    std::from_chars(hex.data() + i, hex.data() + i + 8, n, 16);
    numbers.push_back(n);
  }
  return numbers;
}

std::string counted(int64_t n, const char* what) { return fmt::format("{} sample{} {} {}", n, n == 1 ? "" : "s", n == 1 ? "is" : "are", what); }

// One tensor of a module's file and where its bytes lie.
struct StoredTensor {
  SafetensorsEntry entry;
  const void* data;
};

// Parameter by parameter: weight, master, moments.
std::vector<StoredTensor> stored_tensors(const HostStore& store, const ModuleState& s) {
  std::vector<StoredTensor> all;
  const auto& params = s.module->params();
  for (size_t i = 0; i < params.size(); ++i) {
    const std::string name = s.prefix + params[i].name;
    const int64_t at = s.module->layout().offset[i];
    auto add = [&](const std::string& suffix, DType type, const void* slab) {
      all.push_back({{name + suffix, type, params[i].shape}, static_cast<const std::byte*>(slab) + at * dtype_bytes(type)});
    };
    add("", store.options().compute_dtype, s.weights);
    if (s.remainder) add(".master_low", DType::kI16, s.remainder);
    if (s.master && s.master != s.weights) add(".master", DType::kF32, s.master);
    const MomentCodec codec = store.options().moments;
    add(".exp_avg", codec == MomentCodec::kFp32 ? DType::kF32 : codec == MomentCodec::kBf16 ? DType::kBF16 : DType::kI8, s.exp_avg);
    add(".exp_avg_sq", codec == MomentCodec::kFp32 ? DType::kF32 : codec == MomentCodec::kBf16 ? DType::kBF16 : DType::kU8, s.exp_avg_sq);
    if (codec != MomentCodec::kInt8) continue;
    const Shape blocks{moment_blocks(element_count(params[i].shape))};
    all.push_back({{name + ".exp_avg_scale", DType::kF32, blocks}, s.exp_avg_scale + s.scale_at[i]});
    all.push_back({{name + ".exp_avg_sq_scale", DType::kF32, blocks}, s.exp_avg_sq_scale + s.scale_at[i]});
  }
  return all;
}

// `latest` is exchanged in one step, so there is no instant without it.
void point_latest(const std::string& output_dir, const std::string& target) {
  const std::string link = output_dir + "/latest", temporary = link + ".tmp";
  unlink(temporary.c_str());
  {
    const DiskOperation operation("link", temporary);
    if (symlink(target.c_str(), temporary.c_str()) != 0) throw system_error("link", temporary, errno);
  }
  try {
    rename_path(temporary, link);
  } catch (const Error&) {
    unlink(temporary.c_str());
    throw;
  }
  fsync_directory(output_dir);
}

}  // namespace

DataKeys data_keys(const std::vector<std::string>& keys) {
  constexpr size_t kMostHashes = 65536;  // half a MiB of text
  DataKeys d;
  if (keys.empty()) return d;
  Sha256 all;
  for (const auto& key : keys) {
    all.update(key + "\n");
    if (keys.size() <= kMostHashes) d.hashes.push_back(static_cast<uint32_t>(std::stoul(sha256_hex(key).substr(0, 8), nullptr, 16)));
  }
  d.sha256 = all.hex();
  d.count = static_cast<int64_t>(keys.size());
  return d;
}

std::string data_difference(const DataKeys& before, const DataKeys& now) {
  if (before.sha256.empty() || now.sha256.empty() || before.sha256 == now.sha256) return {};
  if (before.hashes.empty() || now.hashes.empty()) return fmt::format("of {} samples before and {} now not all are the same", before.count, now.count);
  auto a = before.hashes, b = now.hashes;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<uint32_t> gone, added;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(gone));
  std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::back_inserter(added));
  if (gone.empty() && added.empty()) return "the samples are the same in another order";
  std::string text;
  if (!gone.empty()) text = counted(static_cast<int64_t>(gone.size()), "gone");
  if (!added.empty()) text += (text.empty() ? "" : ", ") + counted(static_cast<int64_t>(added.size()), "new");
  return text;
}

std::string to_json(const RunState& state) {
  return nlohmann::json{{"step", static_cast<uint64_t>(state.updates)},
                        {"train_step", state.step},
                        {"seed", state.seed},
                        {"rng", generator_text(state)},
                        {"position", state.position},
                        {"config", state.config},
                        {"data", {{"sha256", state.data.sha256}, {"count", state.data.count}, {"hashes", hex_of(state.data.hashes)}}}}
      .dump();
}

RunState parse_run_state(const std::string& text, const std::string& source) {
  const auto j = nlohmann::json::parse(text, nullptr, false);
  const auto whole = [&](const char* key) { return j.contains(key) && j[key].is_number_integer(); };
  if (!j.is_object() || !whole("step") || !whole("train_step") || !whole("seed") || !j.contains("config") || !j["config"].is_array())
    throw Error(source + ": the manifest holds no training state", "give a checkpoint folder (OUTPUT/checkpoints/step-…)");
  for (const char* key : {"step", "train_step", "seed"})
    if (!j[key].is_number_unsigned() || j[key].get<uint64_t>() > uint64_t{INT64_MAX})
      throw Error(fmt::format("{}: the training state's {} is {}", source, key, short_json(j[key])), older_remedy(source));
  RunState s;
  s.updates = j["step"].get<int64_t>();
  s.step = j["train_step"].get<int64_t>();
  s.seed = j["seed"].get<int64_t>();
  for (const auto& line : j["config"])
    if (line.is_string()) s.config.push_back(line.get<std::string>());
  // A microbatch has a number below 2^48 (steps and microbatches a step are bounded by the configuration).
  if (whole("position") && j["position"].get<int64_t>() >= 0 && j["position"].get<int64_t>() >> 48 == 0) s.position = j["position"].get<int64_t>();
  if (const auto data = j.value("data", nlohmann::json()); data.is_object()) {
    const auto text_of = [&](const char* key) { return data.contains(key) && data[key].is_string() ? data[key].get<std::string>() : std::string(); };
    s.data.sha256 = text_of("sha256");
    s.data.hashes = numbers_of(text_of("hashes"));
    if (data.contains("count") && data["count"].is_number_unsigned()) s.data.count = data["count"].get<int64_t>();
  }
  return s;
}

int64_t checkpoint_bytes(const HostStore& store) {
  int64_t bytes = 0;
  for (int m = 0; m < store.modules(); ++m)
    for (const auto& t : stored_tensors(store, store.module(m)))
      bytes += element_count(t.entry.shape) * dtype_bytes(t.entry.dtype);
  return bytes;
}

CheckpointFolder::CheckpointFolder(const std::string& output_dir) : output_dir_(output_dir), directory_(output_dir + "/checkpoints") {
  std::error_code ec;
  make_directories(directory_, "choose another output.output_dir, or make it writable");
  remove_temporaries(output_dir_);
  if (fs::symlink_status(output_dir_ + "/latest", ec).type() == fs::file_type::directory)
    throw Error(output_dir_ + "/latest: a folder where the link to the newest checkpoint goes", "move it away, or choose another output.output_dir");
  std::vector<fs::directory_entry> entries;
  for (auto e = fs::directory_iterator(directory_, ec); !ec && e != fs::directory_iterator(); e.increment(ec)) entries.push_back(*e);
  if (ec) throw system_error("list", directory_, ec.value());
  for (const auto& e : entries) {
    const std::string name = e.path().filename().string();
    if (!name.starts_with("step-") || (name.find(".tmp") == std::string::npos && name.find(".old-") == std::string::npos)) continue;
    log_warning("{}: an unfinished checkpoint, left by a run that was killed: removed", e.path().string());
    remove_tree(e.path().string());
  }
}

std::vector<std::string> CheckpointFolder::all() const { return checkpoints_in(directory_); }

std::optional<std::string> CheckpointFolder::latest() const {
  const auto paths = all();
  std::error_code ec;
  const std::string target = directory_ + "/" + fs::read_symlink(output_dir_ + "/latest", ec).filename().string();
  if (!ec && std::find(paths.begin(), paths.end(), target) != paths.end()) return target;
  return paths.empty() ? std::nullopt : std::optional(paths.back());
}

std::vector<std::string> CheckpointFolder::candidates() const {
  auto paths = checkpoints_in(directory_, true);
  std::error_code ec;
  const std::string target = directory_ + "/" + fs::read_symlink(output_dir_ + "/latest", ec).filename().string();
  if (const auto at = ec ? paths.end() : std::find(paths.begin(), paths.end(), target); at != paths.end()) paths.erase(at + 1, paths.end());
  std::reverse(paths.begin(), paths.end());
  return paths;
}

std::string CheckpointFolder::save(const HostStore& store, const ModelManifest& like, const RunState& state, int64_t limit,
                                   ThreadPool& pool) const {
  const std::string name = fmt::format("step-{:08}", state.step), path = directory_ + "/" + name;
  constexpr int64_t kHeaders = 1 << 20;
  {
    ModelDirectoryWriter writer(path, like.config, true, checkpoint_bytes(store) + kHeaders);
    writer.set_source(like.source);
    writer.set_state(to_json(state));
    pool.parallel_for(store.modules(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m)
        store.read_module(static_cast<int>(m), [&](const ModuleState& s) {
          const auto tensors = stored_tensors(store, s);
          std::vector<SafetensorsEntry> entries;
          entries.reserve(tensors.size());
          for (const auto& t : tensors) entries.push_back(t.entry);
          const std::string file = m == 0 ? kEmbedFile : m == store.modules() - 1 ? kHeadFile : layer_file_name(m - 1);
          writer.write_file(file, entries, [&](size_t i, const ModelDirectoryWriter::Sink& sink) {
            sink({static_cast<const std::byte*>(tensors[i].data),
                  static_cast<size_t>(element_count(entries[i].shape) * dtype_bytes(entries[i].dtype))});
          });
        });
    });
    writer.commit();
  }
  point_latest(output_dir_, "checkpoints/" + name);
  rotate(path, limit);
  return path;
}

void CheckpointFolder::rotate(const std::string& newest, int64_t limit) const {
  if (limit == 0) return;
  const auto others = static_cast<size_t>(std::max<int64_t>(2, limit) - 1);
  // The new checkpoint is whole and in its place: that an old one stays is no failure of it.
  try {
    auto paths = all();
    paths.erase(std::find(paths.begin(), paths.end(), newest), paths.end());
    for (size_t i = 0; i + others < paths.size(); ++i) {
      // Half a folder must not look like a checkpoint. Under this name, what a kill or a failure leaves of it goes at the next start.
      const std::string unfinished = paths[i] + ".tmp";
      remove_tree(unfinished);
      rename_path(paths[i], unfinished);
      remove_tree(unfinished);
    }
  } catch (const Error& e) {
    log_warning("an old checkpoint stays: {}", e.what());
  }
}

ModelDirectory open_checkpoint(const std::string& path) {
  std::error_code ec;
  if (!ModelDirectory::is_one(path) && !is_step_name(fs::path(path).filename().string()))
    throw Error(fmt::format("{}: {}", path, fs::exists(path, ec) ? "not a checkpoint: it has no manifest.json" : "no such checkpoint"),
                "give latest, none, or one of OUTPUT/checkpoints/step-…");
  try {
    const ModelDirectory directory = ModelDirectory::open(path);
    if (directory.is_checkpoint()) return directory;
  } catch (const Error& e) {
    throw Error(e.message(), older_remedy(path));
  }
  throw Error(path + ": a model, not a checkpoint", "give latest, none, or one of OUTPUT/checkpoints/step-…");
}

Error damaged_checkpoint(const std::string& path, const std::vector<ModelDirectory::Difference>& differences) {
  std::string text = path + ": the checkpoint is damaged:";
  for (const auto& d : differences) text += fmt::format("\n  {}: {}", d.name, d.what);
  return Error(text, older_remedy(path));
}

ModelDirectory open_whole_checkpoint(const std::string& path, ThreadPool& pool) {
  const ModelDirectory directory = open_checkpoint(path);
  const auto differences = directory.verify(pool);
  if (!differences.empty()) throw damaged_checkpoint(path, differences);
  return directory;
}

RunState load_checkpoint(const std::string& path, HostStore& store, ThreadPool& pool) {
  const ModelDirectory directory = open_whole_checkpoint(path, pool);
  load_state(store, directory, pool, true);
  return parse_run_state(directory.manifest().state, path);
}

namespace {

// Piece by piece, so that it takes hardly any memory beside the state.
void hash_parameter(StateHasher& hasher, const HostStore& store, int m, const ModuleState& s, size_t i, ThreadPool& pool) {
  const ParamSpec& spec = s.module->params()[i];
  const int64_t at = s.module->layout().offset[i], n = element_count(spec.shape);
  std::vector<float> x(static_cast<size_t>(std::min(n, kStatePiece)));
  std::vector<uint16_t> w;
  const auto pieces = [&](auto&& work) {
    for (int64_t first = 0; first < n; first += kStatePiece) work(first, std::min(kStatePiece, n - first));
  };
  const auto values = [&](int64_t count) { return std::span<const float>(x.data(), static_cast<size_t>(count)); };
  hasher.begin_tensor(s.prefix + spec.name, n);
  pieces([&](int64_t first, int64_t count) {
    if (store.options().compute_dtype != DType::kF32)
      return hasher.weights({static_cast<const uint16_t*>(s.weights) + at + first, static_cast<size_t>(count)});
    store.read_master(pool, m, at + first, count, x.data());
    w.clear();
    for (const float p : values(count)) w.push_back(to_bf16(p).bits);
    hasher.weights(w);
  });
  pieces([&](int64_t first, int64_t count) {
    store.read_master(pool, m, at + first, count, x.data());
    hasher.masters(values(count));
  });
  pieces([&](int64_t first, int64_t count) {
    store.read_first_moment(pool, m, i, first, count, x.data());
    hasher.first_moments(values(count));
  });
  pieces([&](int64_t first, int64_t count) {
    store.read_second_moment(pool, m, i, first, count, x.data());
    hasher.second_moments(values(count));
  });
}

}  // namespace

std::string state_hash(const HostStore& store, const RunState& state, ThreadPool& pool) {
  StateHasher hasher;
  for (int m = 0; m < store.modules(); ++m)
    store.read_module(m, [&](const ModuleState& s) {
      for (size_t i = 0; i < s.module->params().size(); ++i) hash_parameter(hasher, store, m, s, i, pool);
    });
  hasher.add_step(static_cast<uint64_t>(state.updates), generator_text(state));
  return hasher.hex();
}

}  // namespace megaslide
