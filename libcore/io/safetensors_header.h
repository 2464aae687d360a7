// The JSON header of a safetensors file: parsing with all of the format's checks, and writing.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace megaslide {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the reference reader's cap

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // ascending by (begin, end)
  std::map<std::string, std::string> metadata;
  std::vector<std::string> warnings;
};

// `json` is the header without its length, `data_bytes` what follows it in the file, `path` for messages. Throws Error
// for everything of spec wan.md F.2 and for duplicate keys.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes, const std::string& path);

// A file's header and where its data begins.
struct SafetensorsLayout {
  SafetensorsHeader header;
  int64_t data = 0;  // N + 8: bytes from the file's start
};

// `file` is all of its bytes, of which no tensor data is read. Throws Error for everything of F.2, and names what the file
// seems to be instead of safetensors.
SafetensorsLayout parse_safetensors_file(std::string_view file, const std::string& path);

// Length and header, padded with spaces so that the data starts at a multiple of `alignment`.
std::string make_safetensors_header(const std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata, int64_t alignment);

}  // namespace megaslide
