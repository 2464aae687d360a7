#include "attention_check/emulated.h"

#include "attention_check/run_kernels-inl.h"
#include "kernels/simt/emulated_kernels.h"

namespace megaslide {
namespace {

using Emulated = emulated::Kernels;

// By gathering, or by tiles where they fit; dk and dv always by gathering.
template <bool kTiles>
NamedResults run_dsa(const StoredCase& c, DType dtype, Stream& stream) {
  cuda::allow_dsa_tiles(kTiles);
  NamedResults r = run_kernels::run_dsa<Emulated>(c, dtype, stream);
  cuda::allow_dsa_tiles(true);
  return r;
}

}  // namespace

const std::vector<TestedKernel>& emulated_kernels(CaseKind kind) {
  static const std::map<CaseKind, std::vector<TestedKernel>> kernels{
      {CaseKind::kDsa, {{"cuda_gather", true, &run_dsa<false>}, {"cuda_tile", true, &run_dsa<true>, false}}},
      {CaseKind::kDense, {{"cuda_dense", true, &run_kernels::run_dense<Emulated>}}},
      {CaseKind::kWindow, {{"cuda_window", true, &run_kernels::run_window<Emulated>}}},
      {CaseKind::kPooled, {{"cuda_pooled", true, &run_kernels::run_pooled<Emulated>}}},
      {CaseKind::kOffsetNet, {{"cuda_offset_net", true, &run_kernels::run_offset_net<Emulated>}}},
      {CaseKind::kMotion, {{"cuda_motion", true, &run_kernels::run_motion<Emulated>}}}};
  return kernels.at(kind);
}

}  // namespace megaslide
