#include <cmath>
#include <vector>

#include "kernels/rope/rope.h"

namespace megaslide::reference {

namespace {
// The angle of pair j of a head at token row r.
double angle(const RopeGrid& g, int64_t row, int64_t j) {
  const int64_t token = row % (g.frames * g.height * g.width),
                position[3] = {g.first_frame + token / (g.height * g.width), token / g.width % g.height, token % g.width};
  const int64_t channels[3] = {g.time_channels(), g.space_channels(), g.space_channels()};
  int axis = 0;
  while (j >= channels[axis] / 2) j -= channels[axis++] / 2;
  return static_cast<double>(position[axis]) *
         std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(channels[axis]));
}

// Turns a row by its angles, or back.
void rotate_row(std::vector<double>& u, const RopeGrid& g, int64_t row, bool back) {
  for (int64_t c = 0; c < g.heads * g.head_dim; c += 2) {
    const double theta = angle(g, row, c % g.head_dim / 2), cosine = std::cos(theta),
                 sine = back ? -std::sin(theta) : std::sin(theta);
    const size_t i = static_cast<size_t>(c);
    const double even = u[i] * cosine - u[i + 1] * sine, odd = u[i] * sine + u[i + 1] * cosine;
    u[i] = even;
    u[i + 1] = odd;
  }
}

double row_rstd(const float* x, int64_t width, float eps) {
  double square = 0;
  for (int64_t c = 0; c < width; ++c) square += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  return 1 / std::sqrt(square / static_cast<double>(width) + static_cast<double>(eps));
}
}  // namespace

void rms_rope_forward(float* y, const float* x, const float* gain, bool rotate, RopeGrid grid, int64_t rows,
                      float eps) {
  const int64_t width = grid.heads * grid.head_dim;
  std::vector<double> u(static_cast<size_t>(width));
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = row_rstd(x + r * width, width, eps);
    for (int64_t c = 0; c < width; ++c)
      u[static_cast<size_t>(c)] = static_cast<double>(gain[c]) * static_cast<double>(x[r * width + c]) * rstd;
    if (rotate) rotate_row(u, grid, r, false);
    for (int64_t c = 0; c < width; ++c) y[r * width + c] = static_cast<float>(u[static_cast<size_t>(c)]);
  }
}

void rms_rope_backward(float* dx, float* dgain, float* dbias, const float* dy, const float* x, const float* gain,
                       bool rotate, RopeGrid grid, int64_t rows, float eps) {
  const int64_t width = grid.heads * grid.head_dim;
  std::vector<double> u(static_cast<size_t>(width)), sum_gain(u.size()), sum_bias(u.size());
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = row_rstd(x + r * width, width, eps);
    for (int64_t c = 0; c < width; ++c) u[static_cast<size_t>(c)] = static_cast<double>(dy[r * width + c]);
    if (rotate) rotate_row(u, grid, r, true);
    double inner = 0;
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = static_cast<size_t>(c);
      const double xc = static_cast<double>(x[r * width + c]);
      sum_gain[i] += u[i] * xc * rstd;
      u[i] *= static_cast<double>(gain[c]);
      inner += u[i] * xc;
    }
    for (int64_t c = 0; c < width; ++c) {
      const size_t i = static_cast<size_t>(c);
      const double d =
          rstd * u[i] - static_cast<double>(x[r * width + c]) * rstd * rstd * rstd * inner / static_cast<double>(width);
      sum_bias[i] += d;
      dx[r * width + c] = static_cast<float>(d);
    }
  }
  for (int64_t c = 0; c < width; ++c) {
    dgain[c] += static_cast<float>(sum_gain[static_cast<size_t>(c)]);
    dbias[c] += static_cast<float>(sum_bias[static_cast<size_t>(c)]);
  }
}

}  // namespace megaslide::reference
