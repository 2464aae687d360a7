// The C table between libcore/io and the module that holds libav (video_libav). Plain C types only, so that the two
// sides need not share a C++ runtime version. No function throws; each reports a failure as text in `error`.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

inline constexpr uint32_t kMsVideoModuleVersion = 2;

struct MsVideoInfo {
  int64_t width, height;  // after rotation
  double fps, duration, tick;
  int64_t declared_frames;
  int32_t rotation;
  char codec[32];
  char format[64];    // demuxer
  char transfer[32];  // empty for SDR
};

// Where a message goes: at most `size` bytes with the final zero.
struct MsVideoError {
  char* text;
  size_t size;
};

struct MsVideoModule {
  uint32_t version;
  const char* libraries;  // "libavcodec 59.37.100, ..."

  // Opens a file and decodes its first picture. bt601: not 0 for VideoColour::kBt601 (io/video.h). Null on failure.
  void* (*open)(const char* path, int bt601, MsVideoInfo* info, MsVideoError error);
  // 1: `rgb` (width·height·3 bytes) holds the next picture, shown at `time` seconds for `duration` (0: unknown);
  // 0: the end; -1: failure.
  int (*next)(void* reader, uint8_t* rgb, double* time, double* duration, MsVideoError error);
  // Warnings so far, one a line; valid until the next call.
  const char* (*warnings)(void* reader);
  void (*close)(void* reader);

  // `format`: "mp4", "webm" or "gif". The rate is a fraction. Null on failure.
  void* (*create)(const char* path, const char* format, int64_t width, int64_t height, int rate_num, int rate_den,
                  MsVideoError error);
  int (*write)(void* writer, const uint8_t* rgb, MsVideoError error);  // 0, or -1 on failure
  int (*finish)(void* writer, MsVideoError error);                    // writes the trailer; 0 or -1
  void (*destroy)(void* writer);                                      // after finish, or to give up
};

// The module's only export.
const MsVideoModule* megaslide_video_module();
using MsVideoModuleEntry = const MsVideoModule* (*)();

}  // extern "C"
