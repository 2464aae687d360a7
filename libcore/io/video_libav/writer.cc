// Writing: RGB to mp4, webm or gif. One thread and bit-exact flags: equal pictures give equal files.
#include <cstring>
#include <vector>

#include "io/video_libav/av.h"
#include "io/video_libav/palette.h"

namespace megaslide::av {
namespace {

struct Encoder {
  const char* name;
  std::vector<std::pair<const char*, const char*>> options;
};

// The first that the installed libavcodec has.
std::vector<Encoder> encoders_for(const std::string& format) {
  if (format == "mp4") return {{"libx264", {{"crf", "16"}, {"preset", "medium"}}}, {"libopenh264", {}}, {"mpeg4", {}}};
  if (format == "webm")
    return {{"libvpx-vp9", {{"crf", "20"}, {"deadline", "good"}, {"cpu-used", "2"}, {"row-mt", "0"}}},
            {"libvpx", {{"crf", "8"}, {"deadline", "good"}, {"cpu-used", "1"}}}};
  if (format == "gif") return {{"gif", {}}};
  throw Failure("no encoder is known for " + format);
}

class Writer {
 public:
  Writer(const char* path, const std::string& format, int64_t width, int64_t height, AVRational rate)
      : gif_(format == "gif"), width_(static_cast<int>(width)), height_(static_cast<int>(height)) {
    AVFormatContext* raw = nullptr;
    const std::string url = std::string("file:") + path;  // a name with a colon is no protocol
    if (const int rc = avformat_alloc_output_context2(&raw, nullptr, format.c_str(), url.c_str()); rc < 0) fail("cannot make a " + format, rc);
    format_.reset(raw);
    format_->flags |= AVFMT_FLAG_BITEXACT;
    open_encoder(format, rate);
    stream_ = avformat_new_stream(raw, nullptr);
    if (stream_ == nullptr) throw std::bad_alloc();
    stream_->time_base = encoder_->time_base;
    stream_->avg_frame_rate = rate;
    int rc = avcodec_parameters_from_context(stream_->codecpar, encoder_.get());
    if (rc < 0) fail("cannot describe the stream", rc);
    if ((rc = avio_open(&raw->pb, url.c_str(), AVIO_FLAG_WRITE)) < 0) fail("cannot create the file", rc);
    AVDictionary* options = nullptr;
    if (format == "mp4") av_dict_set(&options, "movflags", "+faststart", 0);
    rc = avformat_write_header(raw, &options);
    av_dict_free(&options);
    if (rc < 0) fail("cannot write the header", rc);
    frame_.reset(av_frame_alloc());
    packet_.reset(av_packet_alloc());
    if (!frame_ || !packet_) throw std::bad_alloc();
    frame_->format = encoder_->pix_fmt;
    frame_->width = width_;
    frame_->height = height_;
    frame_->colorspace = encoder_->colorspace;
    frame_->color_range = encoder_->color_range;
    if ((rc = av_frame_get_buffer(frame_.get(), 0)) < 0) fail("no memory for a picture", rc);
    if (!gif_) make_scaler();
  }

  ~Writer() {
    if (format_ && format_->pb != nullptr) avio_closep(&format_->pb);
  }

  void write(const uint8_t* rgb) {
    const int64_t pixels = static_cast<int64_t>(width_) * height_;
    if (gif_) {  // the palette needs all pictures first
      maker_.add(rgb, pixels);
      kept_.insert(kept_.end(), rgb, rgb + pixels * 3);
      return;
    }
    begin_frame();
    const uint8_t* planes[4] = {rgb, nullptr, nullptr, nullptr};
    const int strides[4] = {width_ * 3, 0, 0, 0};
    if (sws_scale(scaler_.get(), planes, strides, 0, height_, frame_->data, frame_->linesize) <= 0) throw Failure("the colour conversion failed");
    send(frame_.get());
  }

  void finish() {
    if (gif_) write_kept();
    send(nullptr);
    int rc = av_write_trailer(format_.get());
    if (rc < 0) fail("cannot finish the file", rc);
    if ((rc = avio_closep(&format_->pb)) < 0) fail("cannot finish the file", rc);
  }

 private:
  void open_encoder(const std::string& format, AVRational rate) {
    const std::vector<Encoder> all = encoders_for(format);
    const AVCodec* codec = nullptr;
    const Encoder* chosen = nullptr;
    for (const Encoder& e : all)
      if ((codec = avcodec_find_encoder_by_name(e.name)) != nullptr) {
        chosen = &e;
        break;
      }
    if (codec == nullptr) throw Failure("the installed libavcodec has no encoder for " + format);
    encoder_.reset(avcodec_alloc_context3(codec));
    if (!encoder_) throw std::bad_alloc();
    AVCodecContext* c = encoder_.get();
    c->width = width_;
    c->height = height_;
    c->time_base = av_inv_q(rate);
    c->framerate = rate;
    c->thread_count = 1;
    c->flags |= AV_CODEC_FLAG_BITEXACT;
    if ((format_->oformat->flags & AVFMT_GLOBALHEADER) != 0) c->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (gif_) {
      c->pix_fmt = AV_PIX_FMT_PAL8;
    } else {
      c->pix_fmt = AV_PIX_FMT_YUV420P;
      c->color_range = AVCOL_RANGE_MPEG;
      const bool hd = height_ >= 720;
      c->colorspace = hd ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
      c->color_primaries = hd ? AVCOL_PRI_BT709 : AVCOL_PRI_SMPTE170M;
      c->color_trc = hd ? AVCOL_TRC_BT709 : AVCOL_TRC_SMPTE170M;
      if (std::strcmp(chosen->name, "mpeg4") == 0) {
        c->flags |= AV_CODEC_FLAG_QSCALE;
        c->global_quality = 2 * FF_QP2LAMBDA;
      } else if (format == "webm" && std::strcmp(chosen->name, "libvpx") == 0) {
        c->bit_rate = 8'000'000;  // VP8 takes crf only below a ceiling
      }
    }
    AVDictionary* options = nullptr;
    for (const auto& [k, v] : chosen->options) av_dict_set(&options, k, v, 0);
    const int rc = avcodec_open2(c, codec, &options);
    av_dict_free(&options);
    if (rc < 0) fail(std::string("cannot open the encoder ") + chosen->name, rc);
  }

  void make_scaler() {
    constexpr int kFlags = SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP | SWS_BITEXACT;
    scaler_.reset(sws_getContext(width_, height_, AV_PIX_FMT_RGB24, width_, height_, encoder_->pix_fmt, kFlags, nullptr, nullptr, nullptr));
    if (!scaler_) throw Failure("no colour conversion to the encoder's format");
    const int* matrix = sws_getCoefficients(encoder_->colorspace == AVCOL_SPC_BT709 ? SWS_CS_ITU709 : SWS_CS_ITU601);
    sws_setColorspaceDetails(scaler_.get(), matrix, 1, matrix, 0, 0, 1 << 16, 1 << 16);
  }

  void begin_frame() {
    if (const int rc = av_frame_make_writable(frame_.get()); rc < 0) fail("no memory for a picture", rc);
    frame_->pts = count_++;
  }

  void write_kept() {
    const auto palette = maker_.palette();
    const size_t bytes = static_cast<size_t>(width_) * static_cast<size_t>(height_) * 3;
    for (size_t at = 0; at < kept_.size(); at += bytes) {
      begin_frame();
      maker_.map(palette, kept_.data() + at, width_, height_, frame_->data[0], frame_->linesize[0]);
      std::memcpy(frame_->data[1], palette.data(), sizeof palette);
      send(frame_.get());
    }
    kept_.clear();
  }

  void send(AVFrame* frame) {
    int rc = avcodec_send_frame(encoder_.get(), frame);
    if (rc < 0) fail("cannot encode a picture", rc);
    while ((rc = avcodec_receive_packet(encoder_.get(), packet_.get())) == 0) {
      if (packet_->duration == 0) packet_->duration = 1;  // one picture: the container then knows the last one's length
      av_packet_rescale_ts(packet_.get(), encoder_->time_base, stream_->time_base);
      packet_->stream_index = stream_->index;
      if ((rc = av_interleaved_write_frame(format_.get(), packet_.get())) < 0) fail("cannot write the file", rc);
    }
    if (rc != AVERROR(EAGAIN) && rc != AVERROR_EOF) fail("cannot encode a picture", rc);
  }

  bool gif_;
  int width_, height_;
  Owner<AVFormatContext> format_;
  Owner<AVCodecContext> encoder_;
  Owner<AVFrame> frame_;
  Owner<AVPacket> packet_;
  Owner<SwsContext> scaler_;
  AVStream* stream_ = nullptr;
  int64_t count_ = 0;
  PaletteMaker maker_;
  std::vector<uint8_t> kept_;
};

}  // namespace

void* writer_create(const char* path, const char* format, int64_t width, int64_t height, int rate_num, int rate_den, MsVideoError error) {
  return guard<void*>(error, nullptr, [&] { return static_cast<void*>(new Writer(path, format, width, height, AVRational{rate_num, rate_den})); });
}
int writer_write(void* writer, const uint8_t* rgb, MsVideoError error) {
  return guard<int>(error, -1, [&] {
    static_cast<Writer*>(writer)->write(rgb);
    return 0;
  });
}
int writer_finish(void* writer, MsVideoError error) {
  return guard<int>(error, -1, [&] {
    static_cast<Writer*>(writer)->finish();
    return 0;
  });
}
void writer_destroy(void* writer) { delete static_cast<Writer*>(writer); }

}  // namespace megaslide::av
