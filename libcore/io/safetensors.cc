#include "io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <unordered_map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "config/nearest.h"
#include "io/safetensors_header.h"

namespace megaslide {

struct SafetensorsFile::Impl {
  std::string path;
  const std::byte* map = nullptr;
  size_t bytes = 0;
  int64_t data = 0;  // where the data buffer starts
  SafetensorsHeader header;
  std::unordered_map<std::string_view, size_t> by_name;
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (map) ::munmap(const_cast<std::byte*>(map), bytes);
  }
};

namespace {

std::pair<const std::byte*, size_t> map_file(const std::string& path) {
  // Without O_NONBLOCK a FIFO would wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw system_error("open", path, errno, errno == ENOENT ? "check the name" : "");
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close_at_end{fd};
  struct stat status;
  if (::fstat(fd, &status) != 0) throw system_error("read", path, errno);
  if (S_ISDIR(status.st_mode)) throw Error(fmt::format("{}: a folder where a safetensors file is expected", path), "name a file");
  if (!S_ISREG(status.st_mode)) throw Error(fmt::format("{}: not a regular file", path), "copy it to a file first");
  const auto bytes = static_cast<size_t>(status.st_size);
  if (bytes == 0) return {nullptr, 0};  // cannot be mapped
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED) throw system_error("map", path, errno);
  return {static_cast<const std::byte*>(map), bytes};
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  auto impl = std::make_shared<Impl>();
  impl->path = path;
  std::tie(impl->map, impl->bytes) = map_file(path);
  const std::string_view text(reinterpret_cast<const char*>(impl->map), impl->bytes);
  SafetensorsLayout layout = parse_safetensors_file(text, path);
  impl->data = layout.data;
  impl->header = std::move(layout.header);
  for (size_t i = 0; i < impl->header.tensors.size(); ++i) impl->by_name[impl->header.tensors[i].name] = i;
  for (const std::string& w : impl->header.warnings) log_warning("{}: {}", path, w);
  SafetensorsFile file;
  file.impl_ = std::move(impl);
  return file;
}

const std::string& SafetensorsFile::path() const { return impl_->path; }
const std::vector<TensorInfo>& SafetensorsFile::tensors() const { return impl_->header.tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->header.metadata; }
int64_t SafetensorsFile::header_bytes() const { return impl_->data; }
int64_t SafetensorsFile::file_bytes() const { return static_cast<int64_t>(impl_->bytes); }

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto it = impl_->by_name.find(name);
  return it == impl_->by_name.end() ? nullptr : &impl_->header.tensors[it->second];
}

TensorView SafetensorsFile::view(const TensorInfo& info) const {
  return {info.dtype, info.shape, impl_->map + impl_->data + info.begin};
}

TensorView SafetensorsFile::view(const std::string& name) const {
  if (const TensorInfo* info = find(name)) return view(*info);
  std::vector<std::string> names;
  for (const auto& t : tensors()) names.push_back(t.name);
  const std::string near = nearest_name(name, names);
  throw Error(fmt::format("{}: holds no tensor {}{}", path(), quote_for_message(name),
                          near.empty() ? "" : "; did you mean " + quote_for_message(near) + "?"));
}

HostTensor read_f32(const SafetensorsFile& file, const std::string& name) {
  const TensorView v = file.view(name);
  try {
    return HostTensor::f32_from(v);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}: {}", file.path(), quote_for_message(name), e.message()),
                e.remedy().empty() ? "store it as F32, BF16 or F16" : e.remedy());
  }
}

void SafetensorsFile::drop_pages(const TensorInfo& info) const { drop_pages(info, 0, info.end - info.begin); }

void SafetensorsFile::drop_pages(const TensorInfo& info, int64_t from, int64_t to) const {
  // Whole pages only at the ends: a neighbour's page that is dropped too is simply read again.
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  const int64_t begin = (impl_->data + info.begin + from) / page * page, end = impl_->data + info.begin + to;
  if (end > begin) ::madvise(const_cast<std::byte*>(impl_->map) + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

void SafetensorsFile::read_ahead(const TensorInfo& info) const {
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  const int64_t begin = (impl_->data + info.begin) / page * page, end = impl_->data + info.end;
  if (end > begin) ::madvise(const_cast<std::byte*>(impl_->map) + begin, static_cast<size_t>(end - begin), MADV_WILLNEED);
}

struct SafetensorsWriter::Impl {
  std::vector<SafetensorsEntry> entries;
  FileWriter file;
  Sha256 hash;
  int64_t total = 0;  // of the whole file
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                                     const std::map<std::string, std::string>& metadata, int64_t alignment)
    : impl_(std::make_unique<Impl>()) {
  MS_CHECK(alignment >= 8 && alignment % 8 == 0);
  const std::string header = make_safetensors_header(entries, metadata, alignment);
  impl_->total = static_cast<int64_t>(header.size());
  for (const auto& e : entries) impl_->total += element_count(e.shape) * dtype_bits(e.dtype) / 8;
  impl_->entries = std::move(entries);
  impl_->file = FileWriter(path, impl_->total);
  write(std::as_bytes(std::span(header.data(), header.size())));
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  MS_CHECK(impl_->file.written() + static_cast<int64_t>(bytes.size()) <= impl_->total, "{}: more bytes than its header says",
           impl_->file.path());
  impl_->hash.update(bytes);
  impl_->file.write(bytes);
}

SafetensorsWriter::Result SafetensorsWriter::finish() {
  MS_CHECK(impl_->file.written() == impl_->total, "{}: {} of {} bytes written", impl_->file.path(), impl_->file.written(), impl_->total);
  impl_->file.sync();
  impl_->file.close();
  return {impl_->hash.hex(), impl_->total};
}

void sort_safetensors_entries(std::vector<SafetensorsEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
}

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, TensorView>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, const TensorView*> by_name;
  for (const auto& [name, view] : tensors) {
    MS_CHECK(by_name.emplace(name, &view).second, "tensor {} twice", name);
    entries.push_back({name, view.dtype, view.shape});
  }
  sort_safetensors_entries(entries);
  AtomicPath target(path);
  SafetensorsWriter writer(target.temporary(), entries, metadata);
  for (const auto& e : entries) {
    const TensorView& v = *by_name.at(e.name);
    writer.write({v.data, static_cast<size_t>(v.bytes())});
  }
  writer.finish();
  target.commit();
}

}  // namespace megaslide
