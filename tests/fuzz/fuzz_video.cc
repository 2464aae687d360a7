// A video through libav. The reader takes files: this one lies in memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>

#include "io/video.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kMostPictures = 3;
  constexpr int64_t kMostPixels = 1 << 16;  // a picture; larger ones are opened, which decodes one
  static const int fd = memfd_create("video", MFD_CLOEXEC);
  static const std::string path = fmt::format("/proc/self/fd/{}", fd);
  MS_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
  fuzz::accepts([&] {
    const std::unique_ptr<VideoReader> reader = open_video(path);
    const VideoInfo info = reader->info();
    MS_CHECK(info.width > 0 && info.height > 0 && std::isfinite(info.fps) && std::isfinite(info.duration));
    Picture picture;
    double time = 0, before = -1;
    for (int i = 0; i < kMostPictures && info.width * info.height <= kMostPixels && reader->next(picture, time); ++i) {
      MS_CHECK(picture.rgb.size() == static_cast<size_t>(info.width * info.height * 3) && std::isfinite(time) && time > before, "{}", time);
      before = time;
    }
    MS_CHECK(std::isfinite(reader->end_time()));
    for (const std::string& w : reader->warnings()) fuzz::require_printable(w);
  });
  return 0;
}
