// PyTorch archives made by hand: a zip file without compression, and pickles byte by byte.
#pragma once
#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tensor/tensor.h"

struct ZipEntry {
  std::string name, data;
  uint16_t method = 0;     // 0: stored
  uint32_t claims = 0;     // uncompressed size that the headers state; 0: the data's
};

inline uint32_t zip_crc(const std::string& data) {
  uint32_t crc = ~0u;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

inline std::string little(uint64_t value, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

inline std::string make_zip(const std::vector<ZipEntry>& entries) {
  std::string out, directory;
  for (const ZipEntry& e : entries) {
    const auto claims = e.claims ? e.claims : static_cast<uint32_t>(e.data.size());
    // version, flags, method, time, date, checksum, sizes, lengths of name and extra field
    const std::string common = little(20, 2) + little(0, 2) + little(e.method, 2) + little(0, 4) + little(zip_crc(e.data), 4) + little(e.data.size(), 4) +
                               little(claims, 4) + little(e.name.size(), 2) + little(0, 2);
    directory += "PK\x01\x02" + little(20, 2) + common + little(0, 2) + little(0, 2) + little(0, 2) + little(0, 4) + little(out.size(), 4) + e.name;
    out += "PK\x03\x04" + common + e.name + e.data;
  }
  const size_t at = out.size();
  return out + directory + "PK\x05\x06" + little(0, 4) + little(entries.size(), 2) + little(entries.size(), 2) + little(directory.size(), 4) + little(at, 4) + little(0, 2);
}

namespace pickle {

inline std::string text(const std::string& s) { return "X" + little(s.size(), 4) + s; }
inline std::string integer(int64_t n) { return "\x8a\x08" + little(static_cast<uint64_t>(n), 8); }
inline std::string global(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }
inline std::string tuple(const std::vector<int64_t>& v) {
  std::string out = "(";
  for (const int64_t n : v) out += integer(n);
  return out + "t";
}
inline std::string storage(const std::string& type, const std::string& key, int64_t elements) {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cpu") + integer(elements) + "tQ";
}
inline std::string tensor(const std::string& from, int64_t offset, const std::vector<int64_t>& shape, const std::vector<int64_t>& stride) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + from + integer(offset) + tuple(shape) + tuple(stride) + "\x89" + "}" + "tR";
}
// {name: value, …}
inline std::string dict(const std::map<std::string, std::string>& values) {
  std::string out = "}(";
  for (const auto& [name, value] : values) out += text(name) + value;
  return out + "u";
}
inline std::string whole(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace pickle

inline std::string archive_of(const std::string& pickle, const std::vector<std::string>& storages = {}) {
  std::vector<ZipEntry> entries = {{"archive/data.pkl", pickle}};
  for (size_t i = 0; i < storages.size(); ++i) entries.push_back({"archive/data/" + std::to_string(i), storages[i]});
  entries.push_back({"archive/version", "3\n"});
  return make_zip(entries);
}

inline void write_bytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// A state_dict as torch.save writes it.
inline void write_torch(const std::string& path, const std::map<std::string, megaslide::TensorView>& tensors) {
  std::map<std::string, std::string> values;
  std::vector<std::string> storages;
  for (const auto& [name, v] : tensors) {
    const char* type = v.dtype == megaslide::DType::kF32 ? "FloatStorage" : v.dtype == megaslide::DType::kBF16 ? "BFloat16Storage" : "HalfStorage";
    std::vector<int64_t> stride(v.shape.size());
    int64_t n = 1;
    for (size_t i = v.shape.size(); i-- > 0; n *= v.shape[i]) stride[i] = n;
    values[name] = pickle::tensor(pickle::storage(type, std::to_string(storages.size()), v.elements()), 0, v.shape, stride);
    storages.emplace_back(reinterpret_cast<const char*>(v.data), static_cast<size_t>(v.bytes()));
  }
  write_bytes(path, archive_of(pickle::whole(pickle::dict(values)), storages));
}
