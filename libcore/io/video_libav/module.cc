#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "io/video_libav/av.h"

namespace megaslide::av {
namespace {

constexpr size_t kMaxLog = 4096;  // bytes kept: the first messages name the cause
thread_local std::string log_text;

void capture(void* source, int level, const char* format, va_list args) {
  if (level > AV_LOG_ERROR || log_text.size() > kMaxLog) return;
  char line[512];
  int print_prefix = 0;  // without "[mov @ 0x55…]": the address differs from run to run
  va_list copy;
  va_copy(copy, args);
  av_log_format_line2(source, level, format, copy, line, sizeof line, &print_prefix);
  va_end(copy);
  log_text += line;
}

}  // namespace

void prepare_libav() {
  av_log_set_callback(capture);
  av_max_alloc(kMaxAllocation);
}
void clear_log() { log_text.clear(); }
const std::string& captured_log() { return log_text; }

void fail(const std::string& what, int code) {
  if (code == AVERROR(ENOMEM)) throw Failure(what + ": it asks for more memory than there is, or than a video needs at once (1 GiB)");
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof text);
  std::string message = what + ": " + text;
  std::string log = log_text;
  while (!log.empty() && log.back() == '\n') log.pop_back();
  for (char& c : log)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';  // a file's contents never reach a terminal raw
  if (!log.empty()) message += " (" + log.substr(0, 300) + ")";
  throw Failure(message);
}

void put_error(MsVideoError error, const char* text) {
  if (error.size == 0) return;
  std::strncpy(error.text, text, error.size - 1);
  error.text[error.size - 1] = 0;
}

const uint8_t* stream_side_data(const AVStream* stream, AVPacketSideDataType type, size_t bytes) {
#if LIBAVCODEC_VERSION_INT >= AV_VERSION_INT(60, 30, 100)
  const AVPacketSideData* d = av_packet_side_data_get(stream->codecpar->coded_side_data, stream->codecpar->nb_coded_side_data, type);
  return d != nullptr && d->size >= bytes ? d->data : nullptr;
#else
  size_t size = 0;
  const uint8_t* d = av_stream_get_side_data(stream, type, &size);
  return d != nullptr && size >= bytes ? d : nullptr;
#endif
}

int64_t frame_duration(const AVFrame* frame) {
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(57, 30, 100)
  return frame->duration;
#else
  return frame->pkt_duration;
#endif
}

}  // namespace megaslide::av

extern "C" __attribute__((visibility("default"))) const MsVideoModule* megaslide_video_module() {
  using namespace megaslide::av;
  static const std::string libraries = [] {
    const auto part = [](const char* name, unsigned v) {
      return std::string(name) + " " + std::to_string(AV_VERSION_MAJOR(v)) + "." + std::to_string(AV_VERSION_MINOR(v)) + "." +
             std::to_string(AV_VERSION_MICRO(v));
    };
    return part("libavcodec", avcodec_version()) + ", " + part("libavformat", avformat_version());
  }();
  static const MsVideoModule module = {kMsVideoModuleVersion, libraries.c_str(), reader_open,   reader_next,   reader_warnings,
                                       reader_close,          writer_create,     writer_write, writer_finish, writer_destroy};
  prepare_libav();
  return &module;
}
