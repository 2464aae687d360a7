// What this machine reaches at best, for the roofline.
#pragma once
#include "tensor/dtype.h"

namespace megaslide {

struct MachinePeaks {
  double flops = 0;             // flop/s of this build's products of 1024 x 1024 matrices of one type
  double bytes_per_second = 0;  // of a triad a = b + s·c over 192 MB: two reads and a write
};

// The best of some runs, a third of a second in all.
MachinePeaks measure_peaks(DType dtype, int threads);

// The least time that work of `flops` over `bytes` can take on such a machine, as a share of `seconds`.
inline double roofline_share(const MachinePeaks& p, double flops, double bytes, double seconds) {
  const double compute = flops / p.flops, memory = bytes / p.bytes_per_second;
  return (compute > memory ? compute : memory) / seconds;
}

}  // namespace megaslide
