// Recognises what people hand in by mistake instead of a safetensors file.
#pragma once
#include <string>
#include <string_view>

namespace megaslide {

struct ForeignFile {
  std::string what;    // "a PyTorch archive (.pth)"; empty when unknown
  std::string remedy;  // what to do about it
};

// `head`: the first bytes of the file (512 suffice).
ForeignFile identify_foreign_file(const std::string& path, std::string_view head);

}  // namespace megaslide
