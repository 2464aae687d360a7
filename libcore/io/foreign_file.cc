#include "io/foreign_file.h"

#include <algorithm>
#include <cctype>

namespace megaslide {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace

ForeignFile identify_foreign_file(const std::string& path, std::string_view head) {
  const auto starts = [&](std::string_view s) { return head.substr(0, s.size()) == s; };
  const std::string name = lower(path);
  const auto named = [&](std::string_view s) { return name.size() > s.size() && name.ends_with(s); };
  constexpr const char* kConvert =
      "convert it once in Python: safetensors.torch.save_file(torch.load(FILE, weights_only=True), \"model.safetensors\")";
  constexpr const char* kSaveAgain =
      "save it again with a current PyTorch: torch.save(torch.load(FILE, weights_only=True), \"new.pth\")";
  if (head.empty()) return {"an empty file", "download or copy it again"};
  if (starts("PK\x03\x04"))
    return named(".npz") ? ForeignFile{"a NumPy archive (.npz)", "convert its arrays to safetensors"}
                         : ForeignFile{"a zip archive, probably a PyTorch checkpoint (.pth, .pt, .bin)", kConvert};
  if (starts("\x80\x02") || starts("\x80\x03") || starts("\x80\x04") || starts("\x80\x05"))
    return {"a bare Python pickle, as PyTorch wrote it before version 1.6", kSaveAgain};
  if (head.size() > 262 && head.substr(257, 5) == "ustar")
    return {"a tar archive, perhaps a PyTorch checkpoint of before version 0.4", kSaveAgain};
  if (starts("GGUF") || starts("ggml") || named(".gguf"))
    return {"a GGUF file with quantised weights", "use the original weights: a diffusers folder or safetensors in F32, BF16 or F16"};
  if (starts("version https://git-lfs"))
    return {"a git-lfs pointer whose content was not fetched", "run 'git lfs pull' in that folder"};
  const std::string text = lower(head.substr(0, 256));
  if (text.find("<!doctype") != std::string::npos || text.find("<html") != std::string::npos)
    return {"an HTML page, probably an error or login page that was saved", "download it again, with access to the model"};
  if (starts("\x1f\x8b")) return {"a gzip archive", "unpack it first"};
  if (starts("\x89HDF")) return {"an HDF5 file", "convert it to safetensors"};
  if (named(".pth") || named(".pt") || named(".ckpt") || named(".bin"))
    return {"a file with a PyTorch checkpoint's name", kConvert};
  return {};
}

}  // namespace megaslide
