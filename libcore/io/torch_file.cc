#include "io/torch_file.h"

#include <zip.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/library_versions.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr int64_t kPiece = 1 << 20;               // bytes handed on at a time
constexpr int64_t kMaxGather = int64_t{256} << 20;  // bytes
constexpr zip_int64_t kMaxEntries = 1'000'000;
constexpr const char* kAgain = "the file is damaged: download or copy it again";

struct CloseArchive {
  void operator()(zip_t* z) const { zip_discard(z); }
};
struct CloseEntry {
  void operator()(zip_file_t* f) const { zip_fclose(f); }
};
using Archive = std::unique_ptr<zip_t, CloseArchive>;
using EntryFile = std::unique_ptr<zip_file_t, CloseEntry>;

struct Entry {
  zip_uint64_t index;
  int64_t bytes;
};

[[noreturn]] void no_archive(const std::string& path, const std::string& reason) {
  throw Error(fmt::format("{}: not a whole zip archive: {}", path, reason), "a PyTorch file that was cut short or damaged: download or copy it again");
}

Archive open_archive(const std::string& path) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  if (archive) return archive;
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  no_archive(path, text);
}

Archive open_archive(std::span<const std::byte> bytes, const std::string& name) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  Archive archive(source == nullptr ? nullptr : zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error));
  if (!archive && source != nullptr) zip_source_free(source);  // an archive that is open owns it
  const std::string text = archive ? "" : zip_error_strerror(&error);
  zip_error_fini(&error);
  if (!archive) no_archive(name, text);
  return archive;
}

// All entries by name. Data must lie as it is, without compression: then no entry can hold more than the file has.
std::map<std::string, Entry> list_entries(zip_t* archive, int64_t file_bytes, const std::string& path) {
  const zip_int64_t count = zip_get_num_entries(archive, 0);
  if (count > kMaxEntries) throw Error(fmt::format("{}: {} entries, more than any checkpoint has", path, count), kAgain);
  std::map<std::string, Entry> entries;
  int64_t total = 0;
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t s;
    const auto index = static_cast<zip_uint64_t>(i);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(archive, index, ZIP_FL_ENC_RAW, &s) != 0 || (s.valid & kNeeded) != kNeeded)
      throw Error(fmt::format("{}: entry {} of the zip archive is unreadable", path, i), kAgain);
    const std::string name = s.name;
    if (name.ends_with("/constants.pkl") || name.find("/code/__torch__") != std::string::npos)
      throw Error(fmt::format("{}: a TorchScript module, which holds a program", path), "save its state_dict() with torch.save, or as safetensors");
    if (s.encryption_method != ZIP_EM_NONE) throw Error(fmt::format("{}: entry {} is encrypted", path, quote_for_message(name)), "decrypt the archive first");
    if (s.comp_method != ZIP_CM_STORE || s.comp_size != s.size)
      throw Error(fmt::format("{}: entry {} is compressed ({} bytes that claim to be {}), which torch.save never does", path, quote_for_message(name),
                              s.comp_size, s.size),
                  "fetch the file as it was published, not packed again");
    if (s.size > static_cast<zip_uint64_t>(file_bytes) || (total += static_cast<int64_t>(s.size)) > file_bytes)
      throw Error(fmt::format("{}: its entries claim more bytes than the file's {}", path, file_bytes), kAgain);
    if (!entries.emplace(name, Entry{index, static_cast<int64_t>(s.size)}).second)
      throw Error(fmt::format("{}: entry {} is there twice", path, quote_for_message(name)), kAgain);
  }
  return entries;
}

// What comes before "data.pkl" in the entries' names, such as "archive/".
std::string find_prefix(const std::map<std::string, Entry>& entries, const std::string& path) {
  std::vector<std::string> found;
  bool arrays = false;
  for (const auto& [name, entry] : entries) {
    const size_t slash = name.find('/');
    const std::string prefix = slash == std::string::npos ? "" : name.substr(0, slash + 1);
    if (name == prefix + "data.pkl") found.push_back(prefix);
    arrays = arrays || name.ends_with(".npy");
  }
  if (found.size() == 1) return found[0];
  if (arrays) throw Error(fmt::format("{}: a NumPy archive (.npz)", path), "convert its arrays to safetensors");
  throw Error(fmt::format("{}: a zip archive {}, no PyTorch checkpoint", path, found.empty() ? "without a data.pkl" : "with several data.pkl"),
              "give the checkpoint itself, unpacked if it is inside");
}

}  // namespace

struct TorchFile::Impl {
  std::string path, prefix;
  Archive archive;
  std::map<std::string, Entry> entries;
  TorchPickle content;

  EntryFile open_entry(const std::string& name) const {
    EntryFile file(zip_fopen_index(archive.get(), entries.at(name).index, 0));
    if (!file) throw Error(fmt::format("{}: entry {}: {}", path, quote_for_message(name), zip_strerror(archive.get())), kAgain);
    return file;
  }
  // Reads exactly `n` bytes.
  void read(zip_file_t* file, const std::string& name, std::byte* out, int64_t n) const {
    for (int64_t done = 0; done < n;) {
      const zip_int64_t got = zip_fread(file, out + done, static_cast<zip_uint64_t>(n - done));
      if (got <= 0)
        throw Error(fmt::format("{}: entry {}: {}", path, quote_for_message(name), got < 0 ? zip_file_strerror(file) : "it ends too early"), kAgain);
      done += got;
    }
  }
  // At an entry's end the library compares its checksum.
  void read_end(zip_file_t* file, const std::string& name) const {
    std::byte beyond;
    if (zip_fread(file, &beyond, 1) != 0) throw Error(fmt::format("{}: entry {}: {}", path, quote_for_message(name), zip_file_strerror(file)), kAgain);
  }
  std::string read_small(const std::string& name, int64_t limit) const {
    const Entry& e = entries.at(name);
    if (e.bytes > limit) throw Error(fmt::format("{}: entry {} has {} bytes; at most {} are read", path, quote_for_message(name), e.bytes, limit), kAgain);
    std::string text(static_cast<size_t>(e.bytes), '\0');
    const EntryFile file = open_entry(name);
    read(file.get(), name, reinterpret_cast<std::byte*>(text.data()), e.bytes);
    read_end(file.get(), name);
    return text;
  }
};

TorchFile TorchFile::open(const std::string& path) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  impl->archive = open_archive(path);
  return read(std::move(impl), static_cast<int64_t>(std::filesystem::file_size(path)));
}

TorchFile TorchFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  auto impl = std::make_shared<Impl>();
  impl->path = name;
  impl->archive = open_archive(bytes, name);
  return read(std::move(impl), static_cast<int64_t>(bytes.size()));
}

TorchFile TorchFile::read(std::shared_ptr<Impl> impl, int64_t file_bytes) {
  const std::string& path = impl->path;
  impl->entries = list_entries(impl->archive.get(), file_bytes, path);
  impl->prefix = find_prefix(impl->entries, path);
  const std::string order = impl->prefix + "byteorder";
  if (impl->entries.count(order))
    if (const std::string text = impl->read_small(order, 64); text != "little")
      throw Error(fmt::format("{}: its byte order is {}", path, quote_for_message(text)), "save it again on a little-endian machine");
  impl->content = read_torch_pickle(impl->read_small(impl->prefix + "data.pkl", kMaxTorchPickleBytes), path + ": data.pkl");
  for (const TorchTensor& t : impl->content.tensors) {
    const auto it = impl->entries.find(impl->prefix + "data/" + t.storage);
    if (it == impl->entries.end())
      throw Error(fmt::format("{}: tensor {}: the archive has no entry data/{}", path, quote_for_message(t.name), t.storage), kAgain);
    if (it->second.bytes < t.storage_bytes)
      throw Error(fmt::format("{}: tensor {}: its storage data/{} has {} bytes, {} were expected", path, quote_for_message(t.name), t.storage,
                              it->second.bytes, t.storage_bytes),
                  kAgain);
  }
  TorchFile file;
  file.impl_ = std::move(impl);
  return file;
}

const std::string& TorchFile::path() const { return impl_->path; }
const std::vector<TorchTensor>& TorchFile::tensors() const { return impl_->content.tensors; }
const std::vector<std::string>& TorchFile::warnings() const { return impl_->content.warnings; }

namespace {

// Row-major elements of a strided view whose first element is at `from`.
void gather(std::vector<std::byte>& out, const std::byte* from, const TorchTensor& t) {
  const auto width = static_cast<size_t>(dtype_bytes(t.dtype));
  Shape at(t.shape.size(), 0);
  int64_t offset = 0;
  for (size_t i = 0; i < out.size(); i += width) {
    std::memcpy(out.data() + i, from + offset * static_cast<int64_t>(width), width);
    for (size_t axis = t.shape.size(); axis-- > 0;) {
      offset += t.stride[axis];
      if (++at[axis] < t.shape[axis]) break;
      offset -= t.stride[axis] * t.shape[axis];
      at[axis] = 0;
    }
  }
}

}  // namespace

void TorchFile::stream(const TorchTensor& t, const std::function<void(std::span<const std::byte>)>& sink) const {
  const int64_t width = dtype_bytes(t.dtype), bytes = t.span() * width;
  if (bytes == 0) return;
  const std::string name = impl_->prefix + "data/" + t.storage;
  const EntryFile file = impl_->open_entry(name);
  if (t.offset > 0 && zip_fseek(file.get(), t.offset * width, SEEK_SET) != 0)
    throw Error(fmt::format("{}: entry {}: {}", path(), quote_for_message(name), zip_file_strerror(file.get())), kAgain);
  if (!t.contiguous()) {
    if (bytes > kMaxGather)
      throw Error(fmt::format("{}: tensor {} isn't contiguous and spans {} bytes; at most {} are gathered", path(), quote_for_message(t.name), bytes, kMaxGather),
                  "save it again after .contiguous()");
    std::vector<std::byte> all(static_cast<size_t>(bytes)), out(static_cast<size_t>(element_count(t.shape) * width));
    impl_->read(file.get(), name, all.data(), bytes);
    gather(out, all.data(), t);
    return sink(out);
  }
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPiece, bytes)));
  for (int64_t at = 0; at < bytes; at += kPiece) {
    const int64_t n = std::min(kPiece, bytes - at);
    impl_->read(file.get(), name, piece.data(), n);
    sink({piece.data(), static_cast<size_t>(n)});
  }
  if (t.offset == 0 && bytes == impl_->entries.at(name).bytes) impl_->read_end(file.get(), name);
}

std::string version_of_libzip() { return zip_libzip_version(); }

}  // namespace megaslide
