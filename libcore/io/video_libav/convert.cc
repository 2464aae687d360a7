#include "io/video_libav/convert.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

extern "C" {
#include <libavutil/mastering_display_metadata.h>
}

namespace megaslide::av {
namespace {

constexpr double kMostElongated = 16;  // pixels of other shapes are damage

Orientation orientation_of(const int32_t* m) {
  // libav's matrix maps (x, y) to (m0·x + m3·y, m1·x + m4·y).
  Orientation o;
  o.transpose = std::abs(m[1]) > std::abs(m[0]);
  o.mirror_x = (o.transpose ? m[3] : m[0]) < 0;
  o.mirror_y = (o.transpose ? m[1] : m[4]) < 0;
  // The turn; a mirrored picture is mirrored left to right after it.
  o.degrees = o.transpose ? (o.mirror_y ? 270 : 90) : (o.mirror_y ? 180 : 0);
  return o;
}

void orient(const Orientation& o, const uint8_t* stored, int64_t stride, int64_t w, int64_t h, uint8_t* shown) {
  const int64_t out_w = o.transpose ? h : w, out_h = o.transpose ? w : h;
  if (!o.transpose && !o.mirror_x && !o.mirror_y) {
    for (int64_t y = 0; y < h; ++y) std::memcpy(shown + y * w * 3, stored + y * stride, static_cast<size_t>(w * 3));
    return;
  }
  for (int64_t y = 0; y < out_h; ++y)
    for (int64_t x = 0; x < out_w; ++x) {
      const int64_t u = o.mirror_x ? out_w - 1 - x : x, v = o.mirror_y ? out_h - 1 - y : y;
      const uint8_t* from = o.transpose ? stored + u * stride + v * 3 : stored + v * stride + u * 3;
      std::memcpy(shown + (y * out_w + x) * 3, from, 3);
    }
}

AVPixelFormat without_range(AVPixelFormat format, bool& full) {
  switch (format) {
    case AV_PIX_FMT_YUVJ420P: full = true; return AV_PIX_FMT_YUV420P;
    case AV_PIX_FMT_YUVJ422P: full = true; return AV_PIX_FMT_YUV422P;
    case AV_PIX_FMT_YUVJ444P: full = true; return AV_PIX_FMT_YUV444P;
    case AV_PIX_FMT_YUVJ440P: full = true; return AV_PIX_FMT_YUV440P;
    case AV_PIX_FMT_YUVJ411P: full = true; return AV_PIX_FMT_YUV411P;
    default: return format;
  }
}

int sws_matrix(int space, int height) {
  switch (space) {
    case AVCOL_SPC_BT709: return SWS_CS_ITU709;
    case AVCOL_SPC_BT470BG:
    case AVCOL_SPC_SMPTE170M: return SWS_CS_ITU601;
    case AVCOL_SPC_FCC: return SWS_CS_FCC;
    case AVCOL_SPC_SMPTE240M: return SWS_CS_SMPTE240M;
    case AVCOL_SPC_BT2020_NCL:
    case AVCOL_SPC_BT2020_CL: return SWS_CS_BT2020;
    default: return height >= 720 ? SWS_CS_ITU709 : SWS_CS_ITU601;
  }
}

// The brightest light that the clip's metadata states; 0 where it states none, or nothing that can be.
double stated_peak(const AVFrame* frame, const AVStream* stream) {
  const auto sane = [](double light) { return light >= 100 && light <= 10000 ? light : 0; };
  const uint8_t* data = nullptr;
  if (const AVFrameSideData* d = av_frame_get_side_data(frame, AV_FRAME_DATA_CONTENT_LIGHT_LEVEL); d != nullptr && d->size >= sizeof(AVContentLightMetadata)) data = d->data;
  else data = stream_side_data(stream, AV_PKT_DATA_CONTENT_LIGHT_LEVEL, sizeof(AVContentLightMetadata));
  if (data != nullptr)
    if (const double light = sane(reinterpret_cast<const AVContentLightMetadata*>(data)->MaxCLL); light > 0) return light;
  if (const AVFrameSideData* d = av_frame_get_side_data(frame, AV_FRAME_DATA_MASTERING_DISPLAY_METADATA); d != nullptr && d->size >= sizeof(AVMasteringDisplayMetadata)) data = d->data;
  else data = stream_side_data(stream, AV_PKT_DATA_MASTERING_DISPLAY_METADATA, sizeof(AVMasteringDisplayMetadata));
  if (data == nullptr) return 0;
  const auto* m = reinterpret_cast<const AVMasteringDisplayMetadata*>(data);
  return m->has_luminance != 0 && m->max_luminance.den > 0 ? sane(av_q2d(m->max_luminance)) : 0;
}

}  // namespace

void Converter::begin(AVFrame* first, AVStream* stream, const AVCodecContext* decoder, bool bt601) {
  bt601_ = bt601;
  stored_width_ = first->width;
  stored_height_ = first->height;
  choose_orientation(first, stream);
  choose_size(first, stream);
  if (!bt601_) choose_colours(first, stream, decoder);
}

void Converter::choose_orientation(const AVFrame* first, const AVStream* stream) {
  const uint8_t* matrix = stream_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, 36);
  if (matrix == nullptr) {
    const AVFrameSideData* side = av_frame_get_side_data(first, AV_FRAME_DATA_DISPLAYMATRIX);
    if (side != nullptr && side->size >= 36) matrix = side->data;
  }
  if (matrix == nullptr) return;
  int32_t m[9];
  std::memcpy(m, matrix, sizeof m);
  orientation_ = orientation_of(m);
  if (orientation_.mirrored()) warn("mirrored, as its header says");
}

// Square pixels: the shorter axis is stretched, so that nothing that was stored is lost.
void Converter::choose_size(AVFrame* first, AVStream* stream) {
  width_ = stored_width_;
  height_ = stored_height_;
  const AVRational aspect = av_guess_sample_aspect_ratio(nullptr, stream, first);  // the container's word before the codec's
  if (aspect.num <= 0 || aspect.den <= 0) return;
  const double ratio = av_q2d(aspect);
  if (std::abs(ratio - 1) <= 0.01) return;  // a rounded size, not a shape
  const std::string shape = std::to_string(aspect.num) + ":" + std::to_string(aspect.den);
  if (ratio > kMostElongated || ratio < 1 / kMostElongated) return warn("pixels of " + shape + " cannot be; they are taken as square");
  if (ratio > 1) width_ = static_cast<int>(std::lround(width_ * ratio));
  else height_ = static_cast<int>(std::lround(height_ / ratio));
  if (static_cast<int64_t>(width_) * height_ > kMaxPixels) throw Failure("its pixels of " + shape + " make the picture too large");
  warn("pixels are " + shape + ": " + std::to_string(stored_width_) + "x" + std::to_string(stored_height_) + " became " + std::to_string(width_) + "x" + std::to_string(height_) +
       " square ones");
}

void Converter::choose_colours(const AVFrame* first, const AVStream* stream, const AVCodecContext* decoder) {
  const auto stated = [](const auto& picture, const auto& clip, int unspecified) { return number_of(picture) != unspecified ? number_of(picture) : number_of(clip); };
  const int transfer = stated(first->color_trc, decoder->color_trc, AVCOL_TRC_UNSPECIFIED);
  const int primaries = stated(first->color_primaries, decoder->color_primaries, AVCOL_PRI_UNSPECIFIED);
  ToneMapSpec spec;
  if (transfer == AVCOL_TRC_SMPTE2084) spec.curve = LightCurve::kPq;
  if (transfer == AVCOL_TRC_ARIB_STD_B67) spec.curve = LightCurve::kHlg;
  const bool hdr = spec.curve != LightCurve::kSdr;
  if (primaries == AVCOL_PRI_BT2020 || (hdr && primaries == AVCOL_PRI_UNSPECIFIED)) spec.primaries = Primaries::kBt2020;
  if (primaries == AVCOL_PRI_SMPTE432) spec.primaries = Primaries::kDisplayP3;
  if (!hdr && spec.primaries == Primaries::kBt709) return;
  const std::string gamut = spec.primaries == Primaries::kBt2020 ? "BT.2020" : spec.primaries == Primaries::kDisplayP3 ? "Display P3" : "BT.709";
  if (hdr) {
    transfer_ = av_color_transfer_name(static_cast<AVColorTransferCharacteristic>(transfer));
    const double peak = spec.curve == LightCurve::kPq ? stated_peak(first, stream) : ToneMapper::kHlgPeak;
    if (peak > 0) spec.peak = peak;
    char text[160];
    std::snprintf(text, sizeof text, "HDR (transfer %s, %s) is tone-mapped to SDR: %.4g cd/m2%s down to %.4g", transfer_.c_str(), gamut.c_str(), spec.peak, peak > 0 ? "" : " (none is stated)",
                  ToneMapper::kReferenceWhite);
    warn(text);
  } else {
    warn("colours of " + gamut + " are converted to BT.709");
  }
  mapper_ = std::make_unique<ToneMapper>(spec);
}

void Converter::convert(const AVFrame* frame, uint8_t* rgb) {
  bool full = !bt601_ && number_of(frame->color_range) == AVCOL_RANGE_JPEG;
  const auto format = without_range(static_cast<AVPixelFormat>(frame->format), full);
  const AVPixFmtDescriptor* d = av_pix_fmt_desc_get(format);
  if (d == nullptr || (d->flags & AV_PIX_FMT_FLAG_HWACCEL) != 0) throw Failure("unsupported pixel format");
  full = full || (d->flags & AV_PIX_FMT_FLAG_RGB) != 0;
  const std::array<int, 5> key = {frame->width, frame->height, format, full, number_of(frame->colorspace)};
  if (!scaler_ || key != scaler_key_) make_scaler(frame, key, full);
  const int64_t bytes = mapper_ ? 6 : 3, stride = (static_cast<int64_t>(width_) * bytes + 127) / 64 * 64;  // swscale may write past a row's end
  buffer_.resize(static_cast<size_t>(stride * (height_ + 1)));
  uint8_t* planes[4] = {buffer_.data(), nullptr, nullptr, nullptr};
  const int strides[4] = {static_cast<int>(stride), 0, 0, 0};
  if (sws_scale(scaler_.get(), frame->data, frame->linesize, 0, frame->height, planes, strides) <= 0) throw Failure("the colour conversion failed");
  if (!mapper_) return orient(orientation_, buffer_.data(), stride, width_, height_, rgb);
  const int64_t row = static_cast<int64_t>(width_) * 3;
  mapped_.resize(static_cast<size_t>(row * height_));
  for (int64_t y = 0; y < height_; ++y) mapper_->convert(reinterpret_cast<const uint16_t*>(buffer_.data() + y * stride), width_, mapped_.data() + y * row);
  orient(orientation_, mapped_.data(), row, width_, height_, rgb);
}

void Converter::make_scaler(const AVFrame* frame, const std::array<int, 5>& key, bool full) {
  if (frame->width != stored_width_ || frame->height != stored_height_)
    warn("the picture size changes on the way; later pictures are scaled to the first one's size");
  // OpenCV takes swscale as it comes, with its short cuts in chroma.
  const int flags = bt601_ ? SWS_BICUBIC : SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP | SWS_BITEXACT;
  const auto format = static_cast<AVPixelFormat>(key[2]);
  scaler_.reset(sws_getContext(frame->width, frame->height, format, width_, height_, mapper_ ? AV_PIX_FMT_RGB48 : AV_PIX_FMT_RGB24, flags, nullptr, nullptr, nullptr));
  if (!scaler_) throw Failure(std::string("no colour conversion from ") + av_get_pix_fmt_name(format));
  const int* matrix = sws_getCoefficients(bt601_ ? SWS_CS_ITU601 : sws_matrix(key[4], frame->height));
  sws_setColorspaceDetails(scaler_.get(), matrix, full ? 1 : 0, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
  scaler_key_ = key;
}

void Converter::warn(const std::string& text) {
  if (warnings_.find(text) == std::string::npos) warnings_ += text + "\n";
}

}  // namespace megaslide::av
