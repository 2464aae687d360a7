#include "kernels/frame/frame_ops.h"

#include <algorithm>
#include <vector>

namespace megaslide::cpu {
namespace {

float get(const float* p) { return *p; }
float get(const bf16* p) { return to_float(*p); }
void put(float* p, float v) { *p = v; }
void put(bf16* p, float v) { *p = to_bf16(v); }

// body(T*) for the frame's type.
template <class F>
void with_type(DType dtype, F body) {
  if (dtype == DType::kBF16)
    body(static_cast<bf16*>(nullptr));
  else
    body(static_cast<float*>(nullptr));
}

// Rows of a frame in pieces of one: each is thousands of elements.
template <class F>
void for_rows(Stream& stream, int64_t rows, F body) {
  stream.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) body(y);
  });
}

// What channel `channel` of a frame is in planes: its plane and the offset of its pixel in row y, column 0.
int64_t plane_offset(const FramePlanes& p, int64_t channel, int64_t y) {
  const int64_t plane = channel / (p.patch * p.patch), r = channel / p.patch % p.patch, q = channel % p.patch;
  return plane * p.plane + (y * p.patch + q) * p.width + r;
}
}  // namespace

void frame_from_planes(Stream& stream, void* frame, FrameLayout l, const float* planes, FramePlanes p,
                       const float* scale, const float* shift) {
  with_type(l.dtype, [&](auto* type) {
    auto* to = static_cast<decltype(type)>(frame);
    for_rows(stream, l.height, [&](int64_t y) {
      for (int64_t c = 0; c < p.count; ++c) {
        const float* from = planes + plane_offset(p, c, y);
        auto* cell = to + l.cell(y, 0) + p.first + c;
        const int64_t plane = c / (p.patch * p.patch);
        const float mul = scale ? scale[plane] : 1.0F, add = shift ? shift[plane] : 0.0F;
        for (int64_t x = 0; x < l.width; ++x) {
          const float v = from[x * p.patch];
          put(cell + x * l.stored(), scale ? v * mul + add : v);
        }
      }
    });
  });
}

void frame_to_planes(Stream& stream, float* planes, const void* frame, FrameLayout l, FramePlanes p) {
  with_type(l.dtype, [&](auto* type) {
    const auto* from = static_cast<decltype(type)>(const_cast<void*>(frame));
    for_rows(stream, l.height, [&](int64_t y) {
      for (int64_t c = 0; c < p.count; ++c) {
        float* to = planes + plane_offset(p, c, y);
        const auto* cell = from + l.cell(y, 0) + p.first + c;
        for (int64_t x = 0; x < l.width; ++x) to[x * p.patch] = get(cell + x * l.stored());
      }
    });
  });
}

void frame_average(Stream& stream, void* out, FrameLayout out_layout, const void* in, FrameLayout in_layout, int64_t ft,
                   int64_t fs, int64_t a, bool add) {
  const int64_t parts = ft * fs * fs, group = in_layout.channels * parts / out_layout.channels;
  const float scale = 1.0F / static_cast<float>(group);
  // Offsets from the cell (fs·y, fs·x) of what each output channel averages, channel after channel.
  std::vector<int64_t> offsets, ends;
  for (int64_t o = 0; o < out_layout.channels; ++o) {
    for (int64_t f = o * group; f < (o + 1) * group; ++f)
      if (f / (fs * fs) % ft == a)
        offsets.push_back(f / parts + f / fs % fs * in_layout.row() + f % fs * in_layout.stored());
    ends.push_back(static_cast<int64_t>(offsets.size()));
  }
  with_type(out_layout.dtype, [&](auto* type) {
    using T = decltype(type);
    for_rows(stream, out_layout.height, [&](int64_t y) {
      T to = static_cast<T>(out) + out_layout.cell(y, 0);
      const auto* from = static_cast<T>(const_cast<void*>(in)) + in_layout.cell(fs * y, 0);
      for (int64_t x = 0; x < out_layout.width; ++x, to += out_layout.stored(), from += fs * in_layout.stored()) {
        size_t i = 0;
        for (int64_t o = 0; o < out_layout.channels; ++o) {
          float sum = 0;
          for (; i < static_cast<size_t>(ends[static_cast<size_t>(o)]); ++i) sum += get(from + offsets[i]);
          put(to + o, add ? get(to + o) + sum * scale : sum * scale);
        }
      }
    });
  });
}

void frame_repeat(Stream& stream, void* out, FrameLayout out_layout, const void* in, FrameLayout in_layout, int64_t ft,
                  int64_t fs, int64_t a) {
  const int64_t repeats = out_layout.channels * ft * fs * fs / in_layout.channels;
  with_type(out_layout.dtype, [&](auto* type) {
    using T = decltype(type);
    for_rows(stream, out_layout.height, [&](int64_t y) {
      T to = static_cast<T>(out) + out_layout.cell(y, 0);
      const auto* row = static_cast<T>(const_cast<void*>(in)) + in_layout.cell(y / fs, 0);
      std::vector<int64_t> channels(static_cast<size_t>(out_layout.channels));
      for (int64_t d = 0; d < fs; ++d) {
        for (int64_t o = 0; o < out_layout.channels; ++o)
          channels[static_cast<size_t>(o)] = (((o * ft + a) * fs + y % fs) * fs + d) / repeats;
        for (int64_t x = d; x < out_layout.width; x += fs)
          for (int64_t o = 0; o < out_layout.channels; ++o)
            to[x * out_layout.stored() + o] = row[x / fs * in_layout.stored() + channels[static_cast<size_t>(o)]];
      }
    });
  });
}

}  // namespace megaslide::cpu
