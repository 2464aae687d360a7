// Where sampled videos go: files by extension, folders of pictures, folders of videos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/video.h"
#include "tensor/tensor.h"

namespace megaslide {

enum class OutputKind { kVideoFile, kTensorFile, kPictureFolder };

// By extension. A usage Error names the legal ones for any other extension.
OutputKind output_kind(const std::string& path);

// Checks before the work that `path` can be written: its folder exists (or can be made) and is writable.
void check_writable(const std::string& path);

// Makes the folder that `path` lies in, with those above.
void make_parent_folder(const std::string& path);

// `video` (3, F, H, W) in [−1, 1] and the same as pictures; makes the folder. A tensor file gets tensor `video` (1, 3, F, H, W).
void write_video(const std::string& path, OutputKind kind, const HostTensor& video, const std::vector<Picture>& pictures, double fps);

}  // namespace megaslide
