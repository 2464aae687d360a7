#include "io/model_directory.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "io/wan_names.h"
#include "tensor/moment_levels.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kDataAlignment = 4096;
constexpr const char* kScaleSuffixes[] = {".exp_avg_scale", ".exp_avg_sq_scale"};
constexpr const char* kStateSuffixes[] = {".master", ".master_low", ".exp_avg", ".exp_avg_sq", kScaleSuffixes[0], kScaleSuffixes[1]};

std::string part_file_name(const ModelConfig& c, int64_t index) {
  return index < 0 ? kEmbedFile : index == c.layers ? kHeadFile : layer_file_name(index);
}

// The name without a state suffix.
std::string parameter_name(const std::string& name) {
  for (const std::string suffix : kStateSuffixes)
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  return name;
}

bool is_scale(const std::string& name) { return name.ends_with(kScaleSuffixes[0]) || name.ends_with(kScaleSuffixes[1]); }

void check_part(const SafetensorsFile& file, const ModelConfig& config, int64_t index) {
  std::vector<std::string> problems;
  std::map<std::string, Shape> expected;
  for (const WanTensor& t : wan_tensors(config, index)) expected[t.name] = t.shape;
  for (const auto& [name, shape] : expected)
    if (!file.find(name)) problems.push_back("missing: " + name);
  for (const TensorInfo& t : file.tensors()) {
    const auto it = expected.find(parameter_name(t.name));
    if (it == expected.end()) problems.push_back("unknown: " + quote_for_message(t.name));
    else if (const Shape shape = is_scale(t.name) ? Shape{moment_blocks(element_count(it->second))} : it->second; t.shape != shape)
      problems.push_back(fmt::format("wrong shape: {} is {}, expected {}", t.name, to_string(t.shape), to_string(shape)));
  }
  if (problems.empty()) return;
  std::string text;
  for (size_t i = 0; i < problems.size() && i < 10; ++i) text += "\n  " + problems[i];
  if (problems.size() > 10) text += fmt::format("\n  … and {} more", problems.size() - 10);
  throw Error(fmt::format("{}: not the tensors that the manifest's config describes:{}", file.path(), text),
              "make the model directory again with shard-weights");
}

}  // namespace

std::string layer_file_name(int64_t layer) { return fmt::format("layer-{:03}.safetensors", layer); }
bool is_state_tensor(const std::string& name) { return parameter_name(name).size() != name.size(); }

bool ModelDirectory::is_one(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(path + "/" + kManifestName, ec);
}

ModelDirectory ModelDirectory::open_unchecked(const std::string& path) {
  std::error_code ec;
  if (!fs::exists(path, ec)) throw Error(fmt::format("{}: no such model directory", path), "make one with shard-weights");
  if (!is_one(path))
    throw Error(fmt::format("{}: not a model directory: it has no {}", path, kManifestName),
                fs::exists(path + "/model_index.json", ec) || fs::exists(path + "/config.json", ec) || !fs::is_directory(path, ec)
                    ? fmt::format("import it first: shard-weights {} -o DIR", path)
                    : "make one with shard-weights");
  ModelDirectory d;
  d.path_ = path;
  const std::string manifest_path = path + "/" + kManifestName;
  try {
    d.manifest_ = std::make_shared<ModelManifest>(parse_manifest(read_file(manifest_path), manifest_path));
  } catch (const Error& e) {
    if (!e.remedy().empty()) throw;
    throw Error(e.message(), "the manifest is damaged: copy or make the model directory again", e.kind());
  }
  return d;
}

ModelDirectory ModelDirectory::open(const std::string& path) {
  ModelDirectory d = open_unchecked(path);
  std::error_code ec;
  std::set<std::string> names;
  for (const ManifestFile& f : d.manifest_->files) {
    names.insert(f.name);
    const std::string file = path + "/" + f.name;
    const auto bytes = fs::file_size(file, ec);
    if (ec) throw system_error("read", file, ec.value(), "the model directory is incomplete: copy or make it again");
    if (static_cast<int64_t>(bytes) != f.bytes)
      throw Error(fmt::format("{}: {} bytes, the manifest says {}", file, bytes, f.bytes), "the file is damaged: copy or make the model directory again");
  }
  for (int64_t i = -1; i <= d.config().layers; ++i)
    if (!names.count(part_file_name(d.config(), i)))
      throw Error(fmt::format("{}/{}: lists no {}", path, kManifestName, part_file_name(d.config(), i)), "make the model directory again");
  if (names.count(layer_file_name(d.config().layers)))
    throw Error(fmt::format("{}/{}: lists {}, but its config has {} layers", path, kManifestName, layer_file_name(d.config().layers), d.config().layers),
                "make the model directory again");
  if (!d.manifest_->digest_ok)
    log_warning("{}/{}: was changed by hand or is damaged: its content differs from its own digest", path, kManifestName);
  return d;
}

SafetensorsFile ModelDirectory::part(int64_t index) const {
  MS_CHECK(index >= -1 && index <= layers());
  SafetensorsFile file = SafetensorsFile::open(path_ + "/" + part_file_name(config(), index));
  check_part(file, config(), index);
  return file;
}

SafetensorsFile ModelDirectory::embed() const { return part(-1); }
SafetensorsFile ModelDirectory::layer(int64_t i) const {
  MS_CHECK(i >= 0 && i < layers());
  return part(i);
}
SafetensorsFile ModelDirectory::head() const { return part(layers()); }

std::string ModelDirectory::component(const std::string& name) const {
  for (const ManifestFile& f : manifest_->files)
    if (f.name == name) return path_ + "/" + name;
  return {};
}

std::string ModelDirectory::parts_folder() const {
  for (const ManifestFile& f : manifest_->files)
    if (f.name.find('/') != std::string::npos) return path_;
  return !manifest_->source.parts.empty() && is_one(manifest_->source.parts) ? manifest_->source.parts : std::string();
}

bool ModelDirectory::has_second() const { return is_one(path_ + "/" + kSecondNetworkFolder); }
ModelDirectory ModelDirectory::second() const { return open(path_ + "/" + kSecondNetworkFolder); }

std::vector<ModelDirectory::Difference> ModelDirectory::verify(ThreadPool& pool, StopToken stop) const {
  const auto& files = manifest_->files;
  std::vector<std::string> findings(files.size());
  Progress progress("verify", static_cast<double>(files.size()), "files");
  std::mutex mutex;
  pool.parallel_for(static_cast<int64_t>(files.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      stop.throw_if_requested();
      const ManifestFile& f = files[static_cast<size_t>(i)];
      std::string& finding = findings[static_cast<size_t>(i)];
      try {
        const std::string hash = sha256_file(path_ + "/" + f.name);
        if (hash != f.sha256) finding = fmt::format("content differs: SHA-256 {}, the manifest says {}", hash, f.sha256);
      } catch (const Error& e) {
        finding = e.message();
      }
      std::lock_guard lock(mutex);
      progress.add(1, f.name);
    }
  });
  std::vector<Difference> out;
  if (!manifest_->digest_ok) out.push_back({kManifestName, "content differs from its own digest"});
  for (size_t i = 0; i < files.size(); ++i)
    if (!findings[i].empty()) out.push_back({files[i].name, findings[i]});
  if (has_second())
    for (Difference& d : open_unchecked(path_ + "/" + kSecondNetworkFolder).verify(pool, stop)) out.push_back({std::string(kSecondNetworkFolder) + "/" + d.name, std::move(d.what)});
  return out;
}

ModelDirectoryWriter::ModelDirectoryWriter(const std::string& path, const ModelConfig& config, bool replace, int64_t bytes)
    : directory_(path, replace) {
  manifest_.config = config;
  manifest_.source.layout = "init";
  if (bytes > 0) require_free_space(directory_.temporary(), bytes, "the model directory");
}

std::string ModelDirectoryWriter::place(const std::string& name) const {
  const std::string path = directory_.file(name);
  make_directories(parent_directory(path));
  return path;
}

void ModelDirectoryWriter::add_file(ManifestFile file) {
  std::lock_guard lock(mutex_);
  manifest_.files.push_back(std::move(file));
}

void ModelDirectoryWriter::write_tensors(const std::string& name, const std::vector<SafetensorsEntry>& entries, int64_t alignment,
                                         const std::function<void(size_t, const Sink&)>& provide) {
  SafetensorsWriter writer(place(name), entries, {{"format", "pt"}}, alignment);
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t bytes = element_count(entries[i].shape) * dtype_bits(entries[i].dtype) / 8;
    int64_t written = 0;
    provide(i, [&](std::span<const std::byte> piece) {
      written += static_cast<int64_t>(piece.size());
      writer.write(piece);
    });
    MS_CHECK(written == bytes, "{}: {} of {} bytes provided", entries[i].name, written, bytes);
  }
  const SafetensorsWriter::Result result = writer.finish();
  add_file({name, result.bytes, result.sha256});
}

void ModelDirectoryWriter::write_file(const std::string& name, const std::vector<SafetensorsEntry>& entries,
                                      const std::function<void(size_t, const Sink&)>& provide) {
  write_tensors(name, entries, kDataAlignment, provide);
  std::string dtype;
  int64_t parameters = 0;
  for (const SafetensorsEntry& e : entries) {
    if (is_state_tensor(e.name)) continue;
    parameters += element_count(e.shape);
    const std::string own(dtype_name(e.dtype));
    dtype = dtype.empty() || dtype == own ? own : "mixed";
  }
  std::lock_guard lock(mutex_);
  manifest_.parameters += parameters;
  if (!dtype.empty()) manifest_.dtype = manifest_.dtype.empty() || manifest_.dtype == dtype ? dtype : "mixed";
}

void ModelDirectoryWriter::write_part_file(const std::string& name, const std::vector<SafetensorsEntry>& entries,
                                           const std::function<void(size_t, const Sink&)>& provide) {
  write_tensors(name, entries, 8, provide);
}

void ModelDirectoryWriter::write_text(std::string_view text, const std::string& name) {
  FileWriter file(place(name));
  file.write(text);
  file.sync();
  file.close();
  add_file({name, static_cast<int64_t>(text.size()), sha256_hex(text)});
}

void ModelDirectoryWriter::copy_file(const std::string& from, const std::string& name) {
  const CopiedFile copy = megaslide::copy_file(from, place(name));
  add_file({name, copy.bytes, copy.sha256});
}

void ModelDirectoryWriter::adopt_nested(const std::string& name) {
  const std::string manifest = name + "/" + kManifestName, path = directory_.file(manifest);
  add_file({manifest, static_cast<int64_t>(fs::file_size(path)), sha256_file(path)});
}

void ModelDirectoryWriter::commit() {
  auto& files = manifest_.files;
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  FileWriter manifest(directory_.file(kManifestName));
  manifest.write(manifest_to_text(manifest_));
  manifest.sync();
  manifest.close();
  directory_.commit();
}

}  // namespace megaslide
