#include "attention_check/run_kernels-inl.h"

namespace megaslide {
namespace {

struct CpuKernels {
  static constexpr auto& dsa_forward = megaslide::dsa_forward;
  static constexpr auto& dsa_backward = megaslide::dsa_backward;
  static constexpr auto& dense_attention_forward = megaslide::dense_attention_forward;
  static constexpr auto& dense_attention_backward = megaslide::dense_attention_backward;
  static constexpr auto& window_attention_forward = megaslide::window_attention_forward;
  static constexpr auto& window_attention_backward = megaslide::window_attention_backward;
  static constexpr auto& pooled_forward = megaslide::pooled_forward;
  static constexpr auto& pooled_backward = megaslide::pooled_backward;
  static constexpr auto& offset_net_forward = megaslide::offset_net_forward;
  static constexpr auto& offset_net_backward = megaslide::offset_net_backward;
  static constexpr auto& motion_forward = megaslide::motion_forward;
  static constexpr auto& motion_backward = megaslide::motion_backward;
  static constexpr auto dsa_forward_workspace_bytes = &megaslide::dsa_forward_workspace_bytes;
  static constexpr auto dsa_backward_workspace_bytes = &megaslide::dsa_backward_workspace_bytes;
  static constexpr auto dense_attention_forward_workspace_bytes = &megaslide::dense_attention_forward_workspace_bytes;
  static constexpr auto dense_attention_backward_workspace_bytes = &megaslide::dense_attention_backward_workspace_bytes;
  static constexpr auto window_attention_forward_workspace_bytes = &megaslide::window_attention_forward_workspace_bytes;
  static constexpr auto window_attention_backward_workspace_bytes = &megaslide::window_attention_backward_workspace_bytes;
  static constexpr auto pooled_workspace_bytes = &megaslide::pooled_workspace_bytes;
  static constexpr auto offset_net_backward_workspace_bytes = &megaslide::offset_net_backward_workspace_bytes;
  static constexpr auto motion_forward_workspace_bytes = &megaslide::motion_forward_workspace_bytes;
  static constexpr auto motion_backward_workspace_bytes = &megaslide::motion_backward_workspace_bytes;
};

NamedResults run_materialised(const StoredCase& c, DType dtype, Stream& stream) {
  const AttentionShape s = c.dense_shape();
  return run_kernels::run_attention(c, dtype, stream, s, dense_materialised_forward_workspace_bytes(s, dtype),
                       dense_materialised_backward_workspace_bytes(s, dtype), dense_materialised_forward,
                       dense_materialised_backward);
}
}  // namespace

const std::vector<TestedKernel>& tested_kernels(CaseKind kind) {
  static const std::map<CaseKind, std::vector<TestedKernel>> kernels{
      {CaseKind::kDsa, {{"dsa", true, &run_kernels::run_dsa<CpuKernels>}}},
      {CaseKind::kDense, {{"dense", true, &run_kernels::run_dense<CpuKernels>}, {"dense-materialised", true, &run_materialised}}},
      {CaseKind::kWindow, {{"window", true, &run_kernels::run_window<CpuKernels>}}},
      {CaseKind::kPooled, {{"pooled", true, &run_kernels::run_pooled<CpuKernels>}}},
      {CaseKind::kOffsetNet, {{"offset_net", true, &run_kernels::run_offset_net<CpuKernels>}}},
      {CaseKind::kMotion, {{"motion", true, &run_kernels::run_motion<CpuKernels>}}}};
  return kernels.at(kind);
}

}  // namespace megaslide
