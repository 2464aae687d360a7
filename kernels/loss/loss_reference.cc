#include <cmath>

#include "kernels/loss/loss.h"

namespace megaslide::reference {

void velocity_loss(double* loss, float* dout, const float* v, const float* target, const float* weight, LossGrid grid, LossTerm term,
                   float scale) {
  const double n = static_cast<double>(grid.mean_of ? grid.mean_of : grid.elements()), delta = term.delta;
  if (!grid.add) *loss = 0;
  for (int64_t b = 0, i = 0; b < grid.batch; ++b)
    for (int64_t c = 0; c < grid.channels; ++c)
      for (int64_t t = 0; t < grid.frames; ++t)
        for (int64_t k = 0; k < grid.area; ++k, ++i) {
          const double w = weight ? weight[b * grid.frames + t] : 1;
          const double d = static_cast<double>(v[i]) - static_cast<double>(target[i]);
          double value = d * d, slope = 2 * d;
          if (term.kind != LossKind::kMse) {
            const bool near = std::abs(d) < delta;
            value = near ? d * d / 2 : delta * (std::abs(d) - delta / 2);
            slope = near ? d : d > 0 ? delta : -delta;
          }
          if (term.kind == LossKind::kSmoothL1) value /= delta, slope /= delta;
          *loss += w == 0 ? 0 : w * value / n;
          if (dout) dout[i] = w == 0 ? 0 : static_cast<float>(scale * w * slope / n);
        }
}

}  // namespace megaslide::reference
