#include "kernels/dsa/motion.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/scratch.h"
#include "kernels/dsa/dsa_geometry.h"
#include "kernels/dsa/motion_pieces.h"

namespace megaslide {
namespace {

int64_t frames_of(const DsaShape& s) { return s.batch * s.frames; }
int64_t rows_of(const DsaShape& s) { return frames_of(s) * s.height; }

// The frames of a token's slots: slot j is frame start + j.
struct Slots {
  Slots(const DsaShape& s, int64_t frame) {
    const DsaBounds b = dsa_bounds(s, frame);
    count = b.k_eff[0];
    start = dsa_window_start(frame, count, b.lo[0], b.hi[0]);
  }
  int64_t start, count;
  // The slot of another frame, or −1.
  int64_t of(int64_t frame) const { return frame >= start && frame < start + count ? frame - start : -1; }
};

// What forward and backward need of c: padded planes of every frame.
struct Planes {
  Planes(Carver& carver, const DsaShape& s)
      : grid(s), c(carver.take<float>(frames_of(s) * kMotionChannels * grid.size)),
        square(carver.take<float>(frames_of(s) * grid.size)), inverse(carver.take<float>(frames_of(s) * grid.size)) {}

  float* channels(int64_t frame) const { return c + frame * kMotionChannels * grid.size; }
  MotionPair pair(int64_t frame, int64_t other, int64_t piece, float beta) const {
    const int64_t first = piece * grid.piece_rows();
    return {.grid = &grid, .first = first, .end = std::min(grid.height, first + grid.piece_rows()),
            .self = channels(frame), .other = channels(other), .self_inverse = inverse + frame * grid.size,
            .other_inverse = inverse + other * grid.size, .beta = beta};
  }

  MotionGrid grid;
  float* c;        // 16 planes a frame
  float* square;   // c·c of a token
  float* inverse;  // 1/‖z‖, 0 where the patch is none
};

struct BackwardWorkspace {
  BackwardWorkspace(Carver& carver, const DsaShape& s)
      : planes(carver, s), slots(carver.take<float>(4 * frames_of(s) * s.kernel[0] * planes.grid.size)),
        pull(carver.take<float>(frames_of(s) * planes.grid.size)), dgain(carver.take<double>(rows_of(s) * s.groups)),
        ds(carver.take<double>(frames_of(s) * planes.grid.pieces())) {}
  float* slot(const DsaShape& s, int64_t frame, int64_t j) const {
    return slots + 4 * (frame * s.kernel[0] + j) * planes.grid.size;
  }
  Planes planes;
  float* slots;   // four planes a frame and slot: those of MotionSlot
  float* pull;    // Σ β·dS·cos / ‖z‖²
  double* dgain;  // (rows, G)
  double* ds;     // (frames, pieces): Σ dS·cos
};

float widen(const void* value, int64_t i, DType dtype) {
  return dtype == DType::kBF16 ? to_float(static_cast<const bf16*>(value)[i]) : static_cast<const float*>(value)[i];
}

// body(row of the grid, frame among all samples', h)
template <class F>
void for_rows(Stream& stream, const DsaShape& s, F body) {
  stream.parallel_for(rows_of(s), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row, row / s.height, row % s.height);
  });
}

void make_planes(Stream& stream, const Planes& p, const float* c, const DsaShape& s) {
  const int64_t size = p.grid.size, width = s.width;
  stream.parallel_for(frames_of(s), 1, [&](int64_t begin, int64_t end) {
    std::fill(p.c + begin * kMotionChannels * size, p.c + end * kMotionChannels * size, 0.0f);
    std::fill(p.square + begin * size, p.square + end * size, 0.0f);
    std::fill(p.inverse + begin * size, p.inverse + end * size, 0.0f);
  });
  for_rows(stream, s, [&](int64_t row, int64_t frame, int64_t h) {
    const float* from = c + row * width * kMotionChannels;
    float* square = p.square + frame * size + p.grid.at(h, 0);
    for (int64_t i = 0; i < kMotionChannels; ++i) {
      float* to = p.channels(frame) + i * size + p.grid.at(h, 0);
      for (int64_t w = 0; w < width; ++w) {
        to[w] = from[w * kMotionChannels + i];
        square[w] = std::fma(to[w], to[w], square[w]);
      }
    }
  });
}

// The 3×3 sum about one value of a plane.
float box(const float* at, int64_t stride) {
  float sum = 0;
  for (int a = -1; a <= 1; ++a)
    for (int b = -1; b <= 1; ++b) sum += at[a * stride + b];
  return sum;
}

float inverse_of(float norm) { return norm < kMotionUnitEps ? 0.0f : 1 / norm; }

// The offsets of one group and slot j_t among a token's: one (h, w), or in `full` a (t, h, w) a slot.
struct Offsets {
  Offsets(const DsaShape& s, int64_t group, int64_t jt)
      : full(s.mode == DsaOffsetMode::kFull), slots(full ? s.kernel[1] * s.kernel[2] : 1),
        first((group * s.kernel[0] + jt) * slots * (full ? 3 : 2)) {}

  void add(float* token, float h, float w) const {
    float* o = token + first;
    if (!full) {
      o[0] += h, o[1] += w;
      return;
    }
    const float pattern[kBlock] = {0, h, w, 0, h, w, 0, h, w, 0, h, w};
    int64_t i = 0;
    for (; i + kBlock <= 3 * slots; i += kBlock)
      for (int64_t k = 0; k < kBlock; ++k) o[i + k] += pattern[k];
    for (; i < 3 * slots; i += 3) o[i + 1] += h, o[i + 2] += w;
  }
  // Their sums over the slots.
  void sum(const float* token, float* h, float* w) const {
    const float* o = token + first;
    if (!full) {
      *h = o[0], *w = o[1];
      return;
    }
    float part[kBlock] = {};
    int64_t i = 0;
    for (; i + kBlock <= 3 * slots; i += kBlock)
      for (int64_t k = 0; k < kBlock; ++k) part[k] += o[i + k];
    for (int64_t k = 0; i < 3 * slots; ++i, ++k) part[k] += o[i];
    *h = (part[1] + part[4]) + (part[7] + part[10]), *w = (part[2] + part[5]) + (part[8] + part[11]);
  }

  static constexpr int64_t kBlock = 12;  // four triples: whole vectors
  bool full;
  int64_t slots, first;
};

// One piece of a frame: m and lse of its tokens, and what they add to the offsets.
void search(float* offsets, float* m, float* lse, const Planes& p, const float* gain, float beta, const DsaShape& s,
            int64_t frame, int64_t piece) {
  const int64_t t = frame % s.frames, kt = s.kernel[0], row_offsets = dsa_offset_row(s);
  const Slots slots(s, t);
  for (int64_t j = 0; j < kt; ++j) {
    const int64_t other = slots.start + j;
    const bool live = j < slots.count && other != t;
    const MotionPair pair = p.pair(frame, live ? frame - t + other : frame, piece, beta);
    MotionFound found{};
    if (live) found = motion_search_piece(pair, reinterpret_cast<float*>(ThreadScratch::get(4 * kMotionSearchArrays * pair.pitch())));
    for (int64_t h = pair.first; h < pair.end; ++h)
      for (int64_t w = 0; w < s.width; ++w) {
        const int64_t token = (frame * s.height + h) * s.width + w;
        const int64_t l = pair.lead() + (h - pair.first) * p.grid.stride + w;
        float *to = m + (token * kt + j) * 2, *log_sum = lse + token * kt + j;
        to[0] = to[1] = *log_sum = 0;
        if (!live) continue;
        to[0] = found.sum_h[l] / found.sum[l], to[1] = found.sum_w[l] / found.sum[l];
        *log_sum = found.top[l] + std::log(found.sum[l]);
        for (int64_t g = 0; g < s.groups; ++g) {
          if (gain[g] == 0) continue;
          Offsets(s, g, j).add(offsets + token * row_offsets, gain[g] * to[0], gain[g] * to[1]);
        }
      }
  }
}

// The planes of the slots of one row's tokens, and the row's share of dgain.
void spread_gradient(const BackwardWorkspace& x, const float* doffsets, const float* m, const float* lse,
                     const float* gain, const DsaShape& s, int64_t row, int64_t frame, int64_t h) {
  const int64_t kt = s.kernel[0], row_offsets = dsa_offset_row(s), size = x.planes.grid.size;
  const Slots slots(s, frame % s.frames);
  std::fill(x.dgain + row * s.groups, x.dgain + (row + 1) * s.groups, 0.0);
  for (int64_t w = 0; w < s.width; ++w) {
    const int64_t token = row * s.width + w;
    for (int64_t j = 0; j < slots.count; ++j) {
      const float* found = m + (token * kt + j) * 2;
      float dm[2] = {0, 0};
      for (int64_t g = 0; g < s.groups; ++g) {
        float sum[2];
        Offsets(s, g, j).sum(doffsets + token * row_offsets, &sum[0], &sum[1]);
        for (int64_t a = 0; a < 2; ++a) {
          dm[a] += gain[g] * sum[a];
          x.dgain[row * s.groups + g] += static_cast<double>(sum[a]) * static_cast<double>(found[a]);
        }
      }
      float* to = x.slot(s, frame, j) + x.planes.grid.at(h, w);
      to[0] = dm[0], to[size] = dm[1], to[2 * size] = -(dm[0] * found[0] + dm[1] * found[1]);
      to[3 * size] = lse[token * kt + j];
    }
  }
}

// One piece of a frame, as queries of the frames in its window and as keys of the frames whose window it is in.
void gather_gradient(float* dc, const BackwardWorkspace& x, const float* norm, float beta, const DsaShape& s,
                     int64_t frame, int64_t piece) {
  const int64_t t = frame % s.frames, first_frame = frame - t, stride = x.planes.grid.stride, size = x.planes.grid.size;
  const int64_t pitch = x.planes.pair(frame, frame, piece, beta).pitch();
  Carver carver(ThreadScratch::get(4 * (kMotionGradientArrays + kMotionChannels + 2) * pitch));
  float* own = carver.take<float>((kMotionChannels + 2) * pitch);
  float *pull = own + kMotionChannels * pitch, *asked = pull + pitch, *arrays = carver.take<float>(0);
  std::fill(own, own + (kMotionChannels + 2) * pitch, 0.0f);
  const auto add = [&](int64_t other, int64_t query, int64_t j) {
    const float* slot = x.slot(s, first_frame + query, j);
    motion_gradient_piece(x.planes.pair(frame, first_frame + other, piece, beta),
                          {slot, slot + size, slot + 2 * size, slot + 3 * size, query != t}, own, pull, asked, arrays);
  };
  const Slots slots(s, t);
  for (int64_t other = std::max<int64_t>(0, t - s.kernel[0]); other < std::min(s.frames, t + s.kernel[0] + 1); ++other) {
    if (other == t) continue;
    if (slots.of(other) >= 0) add(other, t, slots.of(other));
    if (const int64_t j = Slots(s, other).of(t); j >= 0) add(other, other, j);
  }
  const MotionPair pair = x.planes.pair(frame, frame, piece, beta);
  double sum = 0;
  for (int64_t h = pair.first; h < pair.end; ++h)
    for (int64_t w = 0; w < s.width; ++w) {
      const int64_t token = (frame * s.height + h) * s.width + w, l = pair.lead() + (h - pair.first) * stride + w;
      const float inverse = inverse_of(norm[token]);
      sum += static_cast<double>(asked[l]);
      x.pull[frame * size + x.planes.grid.at(h, w)] = beta * pull[l] * inverse * inverse;
      for (int64_t i = 0; i < kMotionChannels; ++i) dc[token * kMotionChannels + i] = own[i * pitch + l];
    }
  x.ds[frame * x.planes.grid.pieces() + piece] = sum;
}

double tokens_of(const DsaShape& s) { return static_cast<double>(s.batch) * static_cast<double>(s.tokens()); }
// Products and box sum of 81 displacements, and about ten operations of the softmax on each, a frame that is searched.
double search_flops(const DsaShape& s) {
  return tokens_of(s) * 81 * (32 + 4 + 10) * static_cast<double>(std::min(s.kernel[0], s.frames) - 1);
}
double tensor_bytes(const DsaShape& s, double offset_passes) {
  return 4 * tokens_of(s) * (static_cast<double>(kMotionChannels + 1 + 3 * s.kernel[0]) + offset_passes * static_cast<double>(dsa_offset_count(s)));
}

}  // namespace

int64_t motion_forward_workspace_bytes(const DsaShape& s) {
  Carver carver;
  Planes(carver, s);
  return carver.used();
}
int64_t motion_backward_workspace_bytes(const DsaShape& s) {
  Carver carver;
  BackwardWorkspace(carver, s);
  return carver.used();
}

Cost motion_forward_cost(float*, float*, float*, float*, const float*, const void*, const void*, void*, DsaShape s, DType) {
  return {KernelClass::kAttention, search_flops(s), tensor_bytes(s, 2)};
}
Cost motion_backward_cost(float*, float*, float*, const float*, const float*, const float*, const float*, const float*,
                          const void*, const void*, void*, DsaShape s, DType) {
  return {KernelClass::kAttention, 3 * search_flops(s), tensor_bytes(s, 1) + 4 * tokens_of(s) * kMotionChannels};
}

Cost motion_given_forward_cost(float*, float*, const float*, const void*, DsaShape s, DType) {
  return {KernelClass::kVector, 0, 4 * tokens_of(s) * static_cast<double>(4 * s.kernel[0] + 2 * dsa_offset_count(s))};
}
Cost motion_given_backward_cost(float*, const float*, const float*, DsaShape s) {
  return {KernelClass::kVector, 0, 4 * tokens_of(s) * static_cast<double>(2 * s.kernel[0] + dsa_offset_count(s))};
}

namespace cpu {

void motion_forward(Stream& stream, float* offsets, float* m, float* lse, float* norm, const float* c, const void* s,
                    const void* gain, void* workspace, DsaShape shape, DType weight_dtype) {
  MS_CHECK(shape.mode != DsaOffsetMode::kRigid, "the motion term needs slots of one frame");
  Carver carver(workspace);
  const Planes planes(carver, shape);
  std::vector<float> gains(static_cast<size_t>(shape.groups));
  convert_to_f32(gains.data(), gain, weight_dtype, shape.groups);
  const float beta = kMotionBetaBase * widen(s, 0, weight_dtype);
  const int64_t pieces = planes.grid.pieces();
  make_planes(stream, planes, c, shape);
  for_rows(stream, shape, [&](int64_t row, int64_t frame, int64_t h) {
    const int64_t at = frame * planes.grid.size + planes.grid.at(h, 0);
    for (int64_t w = 0; w < shape.width; ++w) {
      const float length = std::sqrt(box(planes.square + at + w, planes.grid.stride));
      norm[row * shape.width + w] = length;
      planes.inverse[at + w] = inverse_of(length);
    }
  });
  stream.parallel_for(frames_of(shape) * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) search(offsets, m, lse, planes, gains.data(), beta, shape, i / pieces, i % pieces);
  });
}

void motion_backward(Stream& stream, float* dc, float* ds, float* dgain, const float* doffsets, const float* m,
                     const float* lse, const float* norm, const float* c, const void* s, const void* gain,
                     void* workspace, DsaShape shape, DType weight_dtype) {
  Carver carver(workspace);
  const BackwardWorkspace x(carver, shape);
  const MotionGrid& grid = x.planes.grid;
  std::vector<float> gains(static_cast<size_t>(shape.groups));
  convert_to_f32(gains.data(), gain, weight_dtype, shape.groups);
  const float beta = kMotionBetaBase * widen(s, 0, weight_dtype);
  const int64_t pieces = grid.pieces(), frame_slots = 4 * shape.kernel[0] * grid.size;
  make_planes(stream, x.planes, c, shape);
  stream.parallel_for(frames_of(shape), 1, [&](int64_t begin, int64_t end) {
    std::fill(x.slots + begin * frame_slots, x.slots + end * frame_slots, 0.0f);
    std::fill(x.pull + begin * grid.size, x.pull + end * grid.size, 0.0f);
  });
  for_rows(stream, shape, [&](int64_t row, int64_t frame, int64_t h) {
    for (int64_t w = 0; w < shape.width; ++w)
      x.planes.inverse[frame * grid.size + grid.at(h, w)] = inverse_of(norm[row * shape.width + w]);
    spread_gradient(x, doffsets, m, lse, gains.data(), shape, row, frame, h);
  });
  stream.parallel_for(frames_of(shape) * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) gather_gradient(dc, x, norm, beta, shape, i / pieces, i % pieces);
  });
  for_rows(stream, shape, [&](int64_t row, int64_t frame, int64_t h) {  // the share of the norms
    for (int64_t w = 0; w < shape.width; ++w) {
      const float pull = box(x.pull + frame * grid.size + grid.at(h, w), grid.stride);
      const int64_t at = (row * shape.width + w) * kMotionChannels;
      for (int64_t i = at; i < at + kMotionChannels; ++i) dc[i] = std::fma(-pull, c[i], dc[i]);
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < frames_of(shape) * pieces; ++i) sum += x.ds[i];
  ds[0] += static_cast<float>(static_cast<double>(kMotionBetaBase) * sum);
  for (int64_t g = 0; g < shape.groups; ++g) {
    double total = 0;
    for (int64_t row = 0; row < rows_of(shape); ++row) total += x.dgain[row * shape.groups + g];
    dgain[g] += static_cast<float>(total);
  }
}

void motion_given_forward(Stream& stream, float* offsets, float* m, const float* displacement, const void* gain, DsaShape s,
                          DType weight_dtype) {
  MS_CHECK(s.mode != DsaOffsetMode::kRigid, "the motion term needs slots of one frame");
  std::vector<float> gains(static_cast<size_t>(s.groups));
  convert_to_f32(gains.data(), gain, weight_dtype, s.groups);
  for_rows(stream, s, [&](int64_t row, int64_t frame, int64_t) {
    const int64_t t = frame % s.frames;
    const Slots slots(s, t);
    for (int64_t token = row * s.width; token < (row + 1) * s.width; ++token)
      for (int64_t j = 0; j < s.kernel[0]; ++j) {
        const int64_t other = slots.start + j;
        const bool live = j < slots.count && other != t;
        const float* from = displacement + (token * s.frames + (live ? other : t)) * 2;
        float* to = m + (token * s.kernel[0] + j) * 2;
        to[0] = live ? from[0] : 0, to[1] = live ? from[1] : 0;
        for (int64_t g = 0; live && g < s.groups; ++g)
          if (const float by = gains[static_cast<size_t>(g)]; by != 0)
            Offsets(s, g, j).add(offsets + token * dsa_offset_row(s), by * to[0], by * to[1]);
      }
  });
}

void motion_given_backward(Stream& stream, float* dgain, const float* doffsets, const float* m, DsaShape s) {
  stream.parallel_for(s.groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      double sum = 0;
      for (int64_t token = 0; token < s.batch * s.tokens(); ++token)
        for (int64_t j = 0; j < s.kernel[0]; ++j) {
          const float* found = m + (token * s.kernel[0] + j) * 2;
          float at[2];
          Offsets(s, g, j).sum(doffsets + token * dsa_offset_row(s), &at[0], &at[1]);
          for (int a = 0; a < 2; ++a) sum += static_cast<double>(at[a]) * static_cast<double>(found[a]);
        }
      dgain[g] += static_cast<float>(sum);
    }
  });
}

}  // namespace cpu
}  // namespace megaslide
