// Versions of the libraries that a program links, for --version. Each function stands in the file through which programs come
// by its library, and is null in a program without. Where a library tells its version at run time it is that one; else the
// one that the program was built with.
#pragma once
#include <string>

#include "base/optional_entry.h"

namespace megaslide {

std::string version_of_openssl();
MS_OPTIONAL std::string version_of_yaml();
MS_OPTIONAL std::string version_of_json();
MS_OPTIONAL std::string version_of_libzip();
MS_OPTIONAL std::string version_of_libpng();
MS_OPTIONAL std::string version_of_zlib();
MS_OPTIONAL std::string version_of_liburing();
MS_OPTIONAL std::string version_of_sentencepiece();
MS_OPTIONAL std::string version_of_highway();
MS_OPTIONAL std::string version_of_onednn();
MS_OPTIONAL std::string version_of_cudart();
// FFmpeg's version and licence, or why it cannot be had. libav itself, which takes longer to load than a program to
// start, is not loaded: its smallest library answers.
MS_OPTIONAL std::string version_of_ffmpeg();

}  // namespace megaslide
