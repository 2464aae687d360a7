// Versions of the libraries that a program links, for --version. Each function stands in a file that its library's every use
// in a program brings along, and its address is null in a program without. Where a library tells its version at run
// time, that one; else the one that the program was built with.
#pragma once
#include <string>

#include "base/optional_entry.h"

namespace megaslide {

std::string openssl_version();
MS_OPTIONAL std::string yaml_version();
MS_OPTIONAL std::string json_version();
MS_OPTIONAL std::string libzip_version();
MS_OPTIONAL std::string libpng_version();
MS_OPTIONAL std::string zlib_version();
MS_OPTIONAL std::string liburing_version();
MS_OPTIONAL std::string sentencepiece_version();
MS_OPTIONAL std::string highway_version();
MS_OPTIONAL std::string onednn_version();
// FFmpeg's version and licence, or why it cannot be had. libav itself, which takes longer to load than a program to
// start, is not loaded: its smallest library answers.
MS_OPTIONAL std::string ffmpeg_version();

}  // namespace megaslide
