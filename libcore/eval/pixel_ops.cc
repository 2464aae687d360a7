#include "eval/pixel_ops.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace megaslide {
namespace {

constexpr int64_t kRadius = kSsimWindow / 2;
constexpr int64_t kBand = 32;  // output rows a piece: fixed, so that the sums are

std::array<double, kSsimWindow> gaussian() {
  std::array<double, kSsimWindow> w{};
  double sum = 0;
  for (int64_t i = 0; i < kSsimWindow; ++i)
    sum += w[i] = std::exp(-0.5 * static_cast<double>((i - kRadius) * (i - kRadius)) / (1.5 * 1.5));
  for (double& v : w) v /= sum;
  return w;
}

// The five filtered maps of one row: E[a], E[b], E[aa], E[bb], E[ab].
constexpr int kMaps = 5;

// Sum of the similarity over output rows [begin, end) of one channel. First down the columns, then along the row: the
// intermediate is one row of five maps.
double ssim_rows(const Picture& a, const Picture& b, int channel, int64_t begin, int64_t end,
                 const std::array<double, kSsimWindow>& w) {
  constexpr double kC1 = (0.01 * 255) * (0.01 * 255), kC2 = (0.03 * 255) * (0.03 * 255);
  const int64_t width = a.width, out_width = width - kSsimWindow + 1;
  std::vector<double> rows(static_cast<size_t>(kMaps * width)), filtered(static_cast<size_t>(kMaps * out_width));
  double sum = 0;
  for (int64_t y = begin; y < end; ++y) {
    std::fill(rows.begin(), rows.end(), 0.0);
    double* const m = rows.data();
    for (int64_t k = 0; k < kSsimWindow; ++k) {
      const uint8_t* pa = a.rgb.data() + (y + k) * width * 3 + channel;
      const uint8_t* pb = b.rgb.data() + (y + k) * width * 3 + channel;
      for (int64_t x = 0; x < width; ++x) {
        const double va = pa[3 * x], vb = pb[3 * x], wa = w[k] * va, wb = w[k] * vb;
        m[x] += wa, m[width + x] += wb, m[2 * width + x] += wa * va, m[3 * width + x] += wb * vb,
            m[4 * width + x] += wa * vb;
      }
    }
    std::fill(filtered.begin(), filtered.end(), 0.0);
    for (int map = 0; map < kMaps; ++map) {
      const double* in = m + map * width;
      double* out = filtered.data() + map * out_width;
      for (int64_t k = 0; k < kSsimWindow; ++k) {
        for (int64_t x = 0; x < out_width; ++x) out[x] += w[k] * in[x + k];
      }
    }
    const double* f = filtered.data();
    for (int64_t x = 0; x < out_width; ++x) {
      const double ma = f[x], mb = f[out_width + x];
      const double saa = f[2 * out_width + x] - ma * ma, sbb = f[3 * out_width + x] - mb * mb,
                   sab = f[4 * out_width + x] - ma * mb;
      sum += (2 * ma * mb + kC1) * (2 * sab + kC2) / ((ma * ma + mb * mb + kC1) * (saa + sbb + kC2));
    }
  }
  return sum;
}

}  // namespace

uint64_t sum_abs_difference(const uint8_t* a, const uint8_t* b, int64_t n) {
  constexpr int64_t kBlock = int64_t{1} << 20;  // 2^20 * 255 < 2^32
  uint64_t total = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t end = std::min(n, i + kBlock);
    uint32_t sum = 0;
    for (int64_t j = i; j < end; ++j) sum += static_cast<uint32_t>(a[j] > b[j] ? a[j] - b[j] : b[j] - a[j]);
    total += sum;
  }
  return total;
}

uint64_t sum_squared_difference(const uint8_t* a, const uint8_t* b, int64_t n) {
  constexpr int64_t kBlock = int64_t{1} << 15;  // 2^15 * 255^2 < 2^31
  uint64_t total = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t end = std::min(n, i + kBlock);
    int32_t sum = 0;
    for (int64_t j = i; j < end; ++j) {
      const int32_t d = int32_t{a[j]} - int32_t{b[j]};
      sum += d * d;
    }
    total += static_cast<uint64_t>(sum);
  }
  return total;
}

double ssim(const Picture& a, const Picture& b, ThreadPool& pool) {
  MS_CHECK(a.width == b.width && a.height == b.height && a.width >= kSsimWindow && a.height >= kSsimWindow);
  const auto w = gaussian();
  const int64_t out_rows = a.height - kSsimWindow + 1, bands = (out_rows + kBand - 1) / kBand;
  std::vector<double> sums(static_cast<size_t>(3 * bands));
  pool.parallel_for(3 * bands, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % bands * kBand;
      sums[i] = ssim_rows(a, b, static_cast<int>(i / bands), first, std::min(out_rows, first + kBand), w);
    }
  });
  double sum = 0;
  for (double s : sums) sum += s;
  return sum / static_cast<double>(3 * out_rows * (a.width - kSsimWindow + 1));
}

double dark_share(const Picture& p, int level) {
  const int64_t n = p.width * p.height;
  int64_t dark = 0;
  for (int64_t i = 0; i < n; ++i)
    dark += int{p.rgb[3 * i] <= level} & int{p.rgb[3 * i + 1] <= level} & int{p.rgb[3 * i + 2] <= level};
  return static_cast<double>(dark) / static_cast<double>(std::max<int64_t>(n, 1));
}

double mean_level(const Picture& p) {
  uint64_t sum = 0;
  for (uint8_t v : p.rgb) sum += v;
  return static_cast<double>(sum) / static_cast<double>(std::max<size_t>(p.rgb.size(), 1));
}

SmallPicture shrink(const Picture& p, int64_t side) {
  const int64_t longer = std::max(p.width, p.height);
  SmallPicture s{p.width, p.height, {}};
  if (longer > side) {
    s.width = std::max<int64_t>(1, (p.width * side + longer / 2) / longer);
    s.height = std::max<int64_t>(1, (p.height * side + longer / 2) / longer);
  }
  s.rgb.resize(static_cast<size_t>(3 * s.width * s.height));
  std::vector<uint64_t> sums(static_cast<size_t>(3 * s.width));
  for (int64_t y = 0; y < s.height; ++y) {
    const int64_t y0 = y * p.height / s.height, y1 = (y + 1) * p.height / s.height;
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t row = y0; row < y1; ++row) {
      const uint8_t* in = p.rgb.data() + row * p.width * 3;
      for (int64_t x = 0; x < s.width; ++x) {
        for (int64_t k = x * p.width / s.width; k < (x + 1) * p.width / s.width; ++k) {
          for (int c = 0; c < 3; ++c) sums[3 * x + c] += in[3 * k + c];
        }
      }
    }
    for (int64_t x = 0; x < s.width; ++x) {
      const int64_t cells = (y1 - y0) * ((x + 1) * p.width / s.width - x * p.width / s.width);
      for (int c = 0; c < 3; ++c)
        s.rgb[3 * (y * s.width + x) + c] = static_cast<float>(sums[3 * x + c]) / static_cast<float>(cells);
    }
  }
  return s;
}

Picture to_picture(const SmallPicture& s) {
  Picture p{s.width, s.height, {}};
  p.rgb.reserve(s.rgb.size());
  for (float v : s.rgb) p.rgb.push_back(static_cast<uint8_t>(std::lround(std::clamp(v, 0.0f, 255.0f))));
  return p;
}

double mean_abs_difference(const SmallPicture& a, const SmallPicture& b) {
  MS_CHECK(a.rgb.size() == b.rgb.size());
  double sum = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i)
    sum += std::fabs(static_cast<double>(a.rgb[i]) - static_cast<double>(b.rgb[i]));
  return sum / static_cast<double>(std::max<size_t>(a.rgb.size(), 1));
}

}  // namespace megaslide
