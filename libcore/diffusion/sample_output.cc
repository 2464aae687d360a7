#include "diffusion/sample_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/safetensors.h"

namespace megaslide {
namespace fs = std::filesystem;

OutputKind output_kind(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code ignored;
  if (path.ends_with('/') || extension.empty() || fs::is_directory(path, ignored)) return OutputKind::kPictureFolder;
  if (extension == ".safetensors") return OutputKind::kTensorFile;
  if (extension == ".mp4" || extension == ".webm" || extension == ".gif") return OutputKind::kVideoFile;
  throw usage_error(fmt::format("{}: cannot write '{}' files", path, extension), "use .mp4, .webm, .gif, .safetensors, or a folder name without extension");
}

void check_writable(const std::string& path) {
  // The nearest folder that exists decides: what lies below it is made when it is needed.
  std::string folder = parent_directory(path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
  std::error_code failure;
  while (fs::status(folder, failure).type() == fs::file_type::not_found && folder != "." && folder != "/") folder = parent_directory(folder);
  if (!fs::is_directory(folder, failure)) throw usage_error(fmt::format("{}: {} is not a folder", path, folder), "give another -o");
  if (access(folder.c_str(), W_OK | X_OK) != 0) throw system_error("write into", folder, errno, "give another -o, or the right to write there");
}

void make_parent_folder(const std::string& path) {
  std::error_code failure;
  fs::create_directories(parent_directory(path.ends_with('/') ? path.substr(0, path.size() - 1) : path), failure);
  if (failure) throw Error(fmt::format("{}: cannot make its folder: {}", path, failure.message()));
}

void write_video(const std::string& path, OutputKind kind, const HostTensor& video, const std::vector<Picture>& pictures, double fps) {
  make_parent_folder(path);
  if (kind == OutputKind::kTensorFile) {
    TensorView view = video.view();
    view.shape.insert(view.shape.begin(), 1);
    write_safetensors(path, {{"video", view}});
    return;
  }
  // A folder may have a dot in its name.
  const auto writer = create_video(kind == OutputKind::kPictureFolder ? path + "/" : path, pictures[0].width, pictures[0].height, fps);
  for (const auto& p : pictures) writer->write(p);
  writer->close();
}

}  // namespace megaslide
