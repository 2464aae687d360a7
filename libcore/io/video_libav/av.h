// What the module's files share: libav's headers, owners for its objects, captured log messages, and the few places
// where FFmpeg 5, 6 and 7 differ.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "io/video_plugin.h"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

namespace megaslide::av {

// A failure inside the module; becomes text at the C border.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Free {
  void operator()(AVFormatContext* p) const { p->oformat != nullptr ? avformat_free_context(p) : avformat_close_input(&p); }
  void operator()(AVCodecContext* p) const { avcodec_free_context(&p); }
  void operator()(AVFrame* p) const { av_frame_free(&p); }
  void operator()(AVPacket* p) const { av_packet_free(&p); }
  void operator()(SwsContext* p) const { sws_freeContext(p); }
  void operator()(AVIOContext* p) const {
    av_freep(&p->buffer);
    avio_context_free(&p);
  }
};
template <class T>
using Owner = std::unique_ptr<T, Free>;

// For the whole process: no allocation over kMaxAllocation, and messages are kept.
void prepare_libav();
// Messages of libav on this thread since the last clear, one a line; nothing is ever printed.
void clear_log();
const std::string& captured_log();
// "av_read_frame: Invalid data found" with the captured messages behind it.
[[noreturn]] void fail(const std::string& what, int code);

// Runs f, turning exceptions into text; `failed` is the answer then.
void put_error(MsVideoError error, const char* text);
template <class R, class F>
R guard(MsVideoError error, R failed, F&& f) {
  try {
    clear_log();
    return f();
  } catch (const std::exception& e) {
    put_error(error, e.what());
  } catch (...) {
    put_error(error, "unknown failure");
  }
  return failed;
}

constexpr int64_t kMaxPixels = int64_t{1} << 28;  // 16384²: a header that claims more is damaged or hostile
// Bytes that libav may take at once: kMaxPixels of four bytes, and their padding. A few bytes can claim an index of gigabytes.
constexpr size_t kMaxAllocation = static_cast<size_t>(kMaxPixels) * 4 + (size_t{1} << 20);

// A value of libav's that a file gave. It may be none that the enumeration lists, and such a one may not be read as one.
template <class E>
int number_of(const E& e) {
  static_assert(std::is_enum_v<E> && sizeof(E) == sizeof(int));
  int n;
  std::memcpy(&n, &e, sizeof n);
  return n;
}

// Side data of a stream, at least `bytes` long; null where there is none.
const uint8_t* stream_side_data(const AVStream* stream, AVPacketSideDataType type, size_t bytes);
// Duration of a decoded picture in the stream's time base; 0 where unknown.
int64_t frame_duration(const AVFrame* frame);

// Entries of the table.
void* reader_open(const char* path, int bt601, MsVideoInfo* info, MsVideoError error);
int reader_next(void* reader, uint8_t* rgb, double* time, double* duration, MsVideoError error);
const char* reader_warnings(void* reader);
void reader_close(void* reader);
void* writer_create(const char* path, const char* format, int64_t width, int64_t height, int rate_num, int rate_den,
                    MsVideoError error);
int writer_write(void* writer, const uint8_t* rgb, MsVideoError error);
int writer_finish(void* writer, MsVideoError error);
void writer_destroy(void* writer);

}  // namespace megaslide::av
