// Reading: demux and decode; convert.cc makes RGB of the pictures.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/video_libav/convert.h"

namespace megaslide::av {
namespace {

// The file through our own callbacks: no protocol of libav is involved, so a playlist disguised as a video cannot
// open anything else, and the name is never taken for a pattern or a URL.
class FileInput {
 public:
  explicit FileInput(const char* path) : fd_(::open(path, O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw Failure(std::string("cannot open: ") + std::strerror(errno));
    constexpr int kBuffer = 1 << 16;
    auto* buffer = static_cast<unsigned char*>(av_malloc(kBuffer));
    if (buffer == nullptr) throw std::bad_alloc();
    io_.reset(avio_alloc_context(buffer, kBuffer, 0, this, read, nullptr, seek));
    if (!io_) throw std::bad_alloc();
  }
  ~FileInput() {
    io_.reset();
    ::close(fd_);
  }
  FileInput(const FileInput&) = delete;
  FileInput& operator=(const FileInput&) = delete;
  AVIOContext* io() { return io_.get(); }

 private:
  static int read(void* self, uint8_t* data, int size) {
    const ssize_t n = ::read(static_cast<FileInput*>(self)->fd_, data, static_cast<size_t>(size));
    return n > 0 ? static_cast<int>(n) : n == 0 ? AVERROR_EOF : AVERROR(errno);
  }
  static int64_t seek(void* self, int64_t offset, int whence) {
    const int fd = static_cast<FileInput*>(self)->fd_;
    if ((whence & AVSEEK_SIZE) != 0) {
      const off_t here = ::lseek(fd, 0, SEEK_CUR), end = ::lseek(fd, 0, SEEK_END);
      ::lseek(fd, here, SEEK_SET);
      return end;
    }
    const off_t at = ::lseek(fd, offset, whence & 3);
    return at < 0 ? AVERROR(errno) : at;
  }
  int fd_;
  Owner<AVIOContext> io_;
};

class Reader {
 public:
  Reader(const char* path, bool bt601, MsVideoInfo* info) : input_(path) {
    open_container();
    choose_stream();
    open_decoder();
    started_ = decode();  // the first picture: its size is the truth, and an undecodable file fails here
    if (!started_) throw Failure("not a video: its video stream holds no picture");
    converter_.begin(frame_.get(), stream_, decoder_.get(), bt601);
    describe(*info);
  }

  int next(uint8_t* rgb, double* time, double* duration) {
    if (!started_ && !decode()) return 0;
    started_ = false;
    converter_.convert(frame_.get(), rgb);
    const double base = av_q2d(stream_->time_base);
    const int64_t stamp = frame_->best_effort_timestamp;
    const double length = static_cast<double>(std::max<int64_t>(frame_duration(frame_.get()), 0)) * base;
    const double guess = count_ == 0 ? 0 : last_time_ + (last_length_ > 0 ? last_length_ : usual_length());
    double t = guess;
    if (stamp != AV_NOPTS_VALUE) {
      if (count_ == 0) origin_ = stamp;
      t = static_cast<double>(stamp - origin_) * base;
    }
    if (count_ > 0 && t <= last_time_) t = guess;  // time never stands still or runs backwards
    *time = last_time_ = t;
    *duration = last_length_ = length;
    ++count_;
    return 1;
  }

  const char* warnings() { return converter_.warnings().c_str(); }

 private:
  void open_container() {
    AVFormatContext* raw = avformat_alloc_context();
    if (raw == nullptr) throw std::bad_alloc();
    raw->pb = input_.io();
    av_opt_set(raw, "protocol_whitelist", "none", 0);  // a container may not open other files
    if (const int rc = avformat_open_input(&raw, "", nullptr, nullptr); rc < 0) {  // frees `raw` on failure
      if (captured_log().find("moov atom not found") != std::string::npos)
        throw Failure("not a whole video: its index (moov) is missing, the file is incomplete");
      if (rc == AVERROR_INVALIDDATA) throw Failure("not a video: not a known format");
      fail("not a video", rc);
    }
    format_.reset(raw);
    if (const int rc = avformat_find_stream_info(raw, nullptr); rc < 0) fail("not a readable video", rc);
  }

  void choose_stream() {
    bool attached = false;
    for (unsigned i = 0; i < format_->nb_streams; ++i) {
      AVStream* s = format_->streams[i];
      s->discard = AVDISCARD_ALL;
      if (s->codecpar->codec_type != AVMEDIA_TYPE_VIDEO) continue;
      if ((s->disposition & AV_DISPOSITION_ATTACHED_PIC) != 0) {
        attached = true;
        continue;
      }
      const bool preferred = (s->disposition & AV_DISPOSITION_DEFAULT) != 0;
      if (stream_ == nullptr || (preferred && (stream_->disposition & AV_DISPOSITION_DEFAULT) == 0)) stream_ = s;
    }
    if (stream_ == nullptr) throw Failure(attached ? "no video stream (only an attached picture)" : "no video stream");
    stream_->discard = AVDISCARD_DEFAULT;
  }

  void open_decoder() {
    const AVCodec* codec = avcodec_find_decoder(stream_->codecpar->codec_id);
    if (codec == nullptr)
      throw Failure(std::string("no decoder for ") + avcodec_get_name(stream_->codecpar->codec_id) + " in the installed libavcodec");
    decoder_.reset(avcodec_alloc_context3(codec));
    if (!decoder_) throw std::bad_alloc();
    int rc = avcodec_parameters_to_context(decoder_.get(), stream_->codecpar);
    if (rc < 0) fail("unusable stream header", rc);
    decoder_->pkt_timebase = stream_->time_base;
    decoder_->max_pixels = kMaxPixels;
    decoder_->thread_count = 1;  // clips are decoded side by side; with frame threads errors come late
    if ((rc = avcodec_open2(decoder_.get(), codec, nullptr)) < 0) fail("cannot open the decoder", rc);
    frame_.reset(av_frame_alloc());
    packet_.reset(av_packet_alloc());
    if (!frame_ || !packet_) throw std::bad_alloc();
  }

  // The next picture into frame_; false at the end.
  bool decode() {
    for (;;) {
      int rc = avcodec_receive_frame(decoder_.get(), frame_.get());
      if (rc == 0) {
        if ((frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0 || frame_->decode_error_flags != 0) damaged("a picture is damaged");
        return true;
      }
      if (rc == AVERROR_EOF) {
        if (!pending_.empty()) throw Failure(pending_);
        return false;
      }
      if (rc != AVERROR(EAGAIN)) damaged("a picture cannot be decoded");
      feed();
    }
  }

  void feed() {
    for (;;) {
      av_packet_unref(packet_.get());
      const int rc = ended_ ? AVERROR_EOF : av_read_frame(format_.get(), packet_.get());
      if (rc < 0 && rc != AVERROR_EOF) return end_with("the file is damaged or cut off");
      if (rc == AVERROR_EOF) {
        if (format_->pb != nullptr && format_->pb->error < 0) return end_with("the file cannot be read to its end");
        return drain();
      }
      if (packet_->stream_index != stream_->index) continue;
      // A packet cut short by the end of the file: what precedes it is intact and still to be shown.
      if ((packet_->flags & AV_PKT_FLAG_CORRUPT) != 0) return end_with("the file is cut off");
      const int sent = avcodec_send_packet(decoder_.get(), packet_.get());
      if (sent < 0 && sent != AVERROR(EAGAIN)) return end_with("a picture cannot be decoded");
      return;
    }
  }

  void drain() {
    ended_ = true;
    avcodec_send_packet(decoder_.get(), nullptr);
  }
  // The pictures the decoder still holds come out first, then the failure.
  void end_with(const std::string& reason) {
    if (pending_.empty()) pending_ = reason;
    drain();
  }
  [[noreturn]] void damaged(const std::string& reason) { throw Failure(pending_.empty() ? reason : pending_); }

  double usual_length() const {
    const AVRational rate = stream_->avg_frame_rate;
    return rate.num > 0 && rate.den > 0 ? av_q2d(av_inv_q(rate)) : 1.0 / 25;
  }

  void describe(MsVideoInfo& info) {
    info = {};
    info.width = converter_.width();
    info.height = converter_.height();
    const AVRational rate = stream_->avg_frame_rate.num > 0 ? stream_->avg_frame_rate : stream_->r_frame_rate;
    const double fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : 0;
    info.fps = fps < 1000 ? fps : 0;  // a clock's resolution, not a rate
    if (stream_->duration > 0) info.duration = static_cast<double>(stream_->duration) * av_q2d(stream_->time_base);
    else if (format_->duration > 0) info.duration = static_cast<double>(format_->duration) / AV_TIME_BASE;
    info.tick = av_q2d(stream_->time_base);
    info.declared_frames = std::max<int64_t>(stream_->nb_frames, 0);
    info.rotation = converter_.degrees();
    std::strncpy(info.codec, avcodec_get_name(decoder_->codec_id), sizeof info.codec - 1);
    std::strncpy(info.format, format_->iformat->name, sizeof info.format - 1);
    std::strncpy(info.transfer, converter_.transfer().c_str(), sizeof info.transfer - 1);
  }

  FileInput input_;
  Owner<AVFormatContext> format_;
  Owner<AVCodecContext> decoder_;
  Owner<AVFrame> frame_;
  Owner<AVPacket> packet_;
  Converter converter_;
  AVStream* stream_ = nullptr;
  std::string pending_;
  bool started_ = false, ended_ = false;
  int64_t count_ = 0, origin_ = 0;
  double last_time_ = 0, last_length_ = 0;
};

}  // namespace

void* reader_open(const char* path, int bt601, MsVideoInfo* info, MsVideoError error) {
  return guard<void*>(error, nullptr, [&] { return static_cast<void*>(new Reader(path, bt601 != 0, info)); });
}
int reader_next(void* reader, uint8_t* rgb, double* time, double* duration, MsVideoError error) {
  return guard<int>(error, -1, [&] { return static_cast<Reader*>(reader)->next(rgb, time, duration); });
}
const char* reader_warnings(void* reader) { return static_cast<Reader*>(reader)->warnings(); }
void reader_close(void* reader) { delete static_cast<Reader*>(reader); }

}  // namespace megaslide::av
