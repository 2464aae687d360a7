#include "io/tensor_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "io/foreign_file.h"
#include "io/safetensors.h"
#include "io/shard_index.h"
#include "io/torch_file.h"

namespace megaslide {
namespace fs = std::filesystem;

using Sink = std::function<void(std::span<const std::byte>)>;

struct TensorSource::Reader {
  virtual ~Reader() = default;
  virtual void stream(const std::string& name, const Sink& sink) const = 0;
};

struct TensorSource::Safetensors : Reader {
  explicit Safetensors(SafetensorsSource s) : source(std::move(s)) {}
  void stream(const std::string& name, const Sink& sink) const override {
    constexpr int64_t kPiece = 1 << 20, kKept = 16 << 20;  // bytes
    const auto& entry = source.tensors().at(name);
    const SafetensorsFile& file = source.files()[entry.file];
    const TensorView view = file.view(entry.info);
    for (int64_t at = 0, dropped = 0; at < view.bytes(); at += kPiece) {
      sink({view.data + at, static_cast<size_t>(std::min(kPiece, view.bytes() - at))});
      if (at + kPiece - dropped < kKept && at + kPiece < view.bytes()) continue;
      const int64_t end = std::min(at + kPiece, view.bytes());
      file.drop_pages(entry.info, dropped, end);
      dropped = end;
    }
  }
  SafetensorsSource source;
};

struct TensorSource::Torch : Reader {
  void stream(const std::string& name, const Sink& sink) const override {
    const auto& [file, tensor] = where.at(name);
    files[file].stream(files[file].tensors()[tensor], sink);
  }
  std::vector<TorchFile> files;
  std::map<std::string, std::pair<size_t, size_t>> where;  // tensor → file, its place there
};

namespace {

bool has_torch_name(const std::string& name) {
  return name.ends_with(".pth") || name.ends_with(".pt") || name.ends_with(".bin") || name.ends_with(".ckpt");
}

bool is_torch_archive(const std::string& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return false;
  char head[4] = {};
  std::ifstream(path, std::ios::binary).read(head, 4);
  return std::memcmp(head, "PK\x03\x04", 4) == 0 && !path.ends_with(".npz");
}

// In a folder without safetensors: the index of PyTorch shards, or the only archive. Empty when there is none.
std::string choose_torch(const std::string& folder) {
  std::vector<std::string> indexes, files;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(folder, ec)) {
    const std::string name = e.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return {};
    if (name.ends_with(".bin.index.json")) indexes.push_back(name);
    else if (has_torch_name(name)) files.push_back(name);
  }
  auto& found = indexes.empty() ? files : indexes;
  if (found.empty()) return {};
  std::sort(found.begin(), found.end());
  if (found.size() > 1)
    throw Error(fmt::format("{}: holds several checkpoints ({}, {}{})", folder, found[0], found[1], found.size() > 2 ? ", …" : ""),
                found[0].find("-of-") != std::string::npos ? "their index (*.bin.index.json) is missing: fetch it too" : "name the one to read");
  return folder + "/" + found[0];
}

TorchFile open_torch(const std::string& path) {
  TorchFile file = TorchFile::open(path);
  for (const std::string& w : file.warnings()) log_warning("{}: {}", path, w);
  return file;
}

}  // namespace

TensorSource TensorSource::open(const std::string& given) {
  TensorSource out;
  std::error_code ec;
  std::string path = given;
  if (fs::is_directory(given, ec))
    if (const std::string torch = choose_torch(given); !torch.empty()) path = torch;
  const bool torch_index = path.ends_with(".bin.index.json");
  if (!torch_index && !is_torch_archive(path)) {
    auto reader = std::make_shared<Safetensors>(SafetensorsSource::open(path));
    for (const auto& [name, e] : reader->source.tensors()) out.tensors_[name] = {e.info.dtype, e.info.shape};
    for (const SafetensorsFile& f : reader->source.files()) out.files_.push_back(f.path());
    out.index_ = reader->source.index();
    out.safetensors_ = true;
    out.reader_ = std::move(reader);
    return out;
  }
  auto reader = std::make_shared<Torch>();
  const auto add = [&](size_t file, size_t tensor) {
    const TorchTensor& t = reader->files[file].tensors()[tensor];
    reader->where[t.name] = {file, tensor};
    out.tensors_[t.name] = {t.dtype, t.shape};
  };
  if (!torch_index) {
    reader->files.push_back(open_torch(path));
    for (size_t i = 0; i < reader->files[0].tensors().size(); ++i) add(0, i);
  } else {
    const ShardIndex index = read_shard_index(path);
    out.index_ = path;
    std::map<std::string, size_t> opened;
    for (const auto& [tensor, name] : index.files) {
      const auto [it, fresh] = opened.emplace(name, reader->files.size());
      if (!fresh) continue;
      const std::string shard = parent_directory(path) + "/" + name;
      if (!fs::exists(shard, ec)) throw Error(fmt::format("{}: the shard {} is missing", path, name), "fetch all shards of the checkpoint");
      reader->files.push_back(open_torch(shard));
      const size_t f = reader->files.size() - 1;
      for (size_t i = 0; i < reader->files[f].tensors().size(); ++i)
        if (const auto mapped = index.files.find(reader->files[f].tensors()[i].name); mapped != index.files.end() && mapped->second == name) add(f, i);
    }
    for (const auto& [tensor, name] : index.files)
      if (!out.tensors_.count(tensor))
        throw Error(fmt::format("{}: maps tensor {} to {}, which does not hold it", path, quote_for_message(tensor), name),
                    "index and shards do not belong together: fetch both again");
  }
  for (const TorchFile& f : reader->files) out.files_.push_back(f.path());
  out.reader_ = std::move(reader);
  return out;
}

const TensorSource::Entry* TensorSource::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

void TensorSource::stream(const std::string& name, const Sink& sink) const {
  MS_CHECK(find(name), "{}", name);
  reader_->stream(name, sink);
}

HostTensor TensorSource::read(const std::string& name, int64_t max_bytes) const {
  const Entry& e = tensors_.at(name);
  if (e.bytes() > max_bytes) throw Error(fmt::format("{}: tensor {} has {} bytes; at most {} were expected", path(), quote_for_message(name), e.bytes(), max_bytes));
  HostTensor out(e.dtype, e.shape);
  int64_t at = 0;
  stream(name, [&](std::span<const std::byte> piece) {
    std::memcpy(out.data() + at, piece.data(), piece.size());
    at += static_cast<int64_t>(piece.size());
  });
  return out;
}

}  // namespace megaslide
