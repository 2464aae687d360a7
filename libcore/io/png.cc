// PNG through libpng's simplified interface.
#include <png.h>

#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/library_versions.h"
#include "io/video.h"

namespace megaslide {
namespace {

constexpr int64_t kMaxPixels = int64_t{1} << 28;  // as for video
constexpr int64_t kMostDeflated = 1032;           // bytes that one of deflate's can stand for

struct Image {
  png_image raw{};
  Image() { raw.version = PNG_IMAGE_VERSION; }
  ~Image() { png_image_free(&raw); }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;
};

}  // namespace

std::string encode_png(const Picture& picture) {
  MS_CHECK(picture.rgb.size() == static_cast<size_t>(picture.width * picture.height * 3) && !picture.rgb.empty());
  Image image;
  image.raw.width = static_cast<png_uint_32>(picture.width);
  image.raw.height = static_cast<png_uint_32>(picture.height);
  image.raw.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image.raw);
  std::string out(size, 0);
  if (png_image_write_to_memory(&image.raw, out.data(), &size, 0, picture.rgb.data(), 0, nullptr) == 0)
    throw Error(fmt::format("PNG encoding failed: {}", image.raw.message));
  out.resize(size);
  return out;
}

Picture decode_png(const std::string& bytes) {
  Image image;
  if (png_image_begin_read_from_memory(&image.raw, bytes.data(), bytes.size()) == 0)
    throw Error(fmt::format("not a readable PNG: {}", image.raw.message), "fetch or export the picture again");
  const int64_t width = image.raw.width, height = image.raw.height;
  if (width * height > kMaxPixels) throw Error(fmt::format("a PNG of {}x{} pixels is too large", width, height), "scale it down");
  // A pixel has a bit at least: memory for a size that the file cannot fill is never asked for.
  if (width * height / 8 / kMostDeflated > static_cast<int64_t>(bytes.size()))
    throw Error(fmt::format("a damaged PNG: {}x{} pixels in {} bytes", width, height, bytes.size()), "fetch or export the picture again");
  image.raw.format = PNG_FORMAT_RGB;
  Picture p{width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3))};
  const png_color black = {0, 0, 0};
  if (png_image_finish_read(&image.raw, &black, p.rgb.data(), 0, nullptr) == 0)
    throw Error(fmt::format("a damaged PNG: {}", image.raw.message), "fetch or export the picture again");
  return p;
}

Picture read_png(const std::string& path) {
  try {
    return decode_png(read_file(path));
  } catch (Error& e) {
    throw e.add_context(path);
  }
}

void write_png(const std::string& path, const Picture& picture) { write_file_atomic(path, encode_png(picture)); }

std::string version_of_libpng() { return png_get_libpng_ver(nullptr); }

}  // namespace megaslide
