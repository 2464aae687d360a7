#include "stream/micro_buffers.h"

#include <algorithm>

namespace megaslide {

int64_t latent_elements(const Network& n, const BatchShape& s, int64_t channels) {
  return s.batch * channels * s.frames * s.height * n.patch_height * s.width * n.patch_width;
}

MicroBuffers make_micro_buffers(const Network& network, const MicroBufferNeeds& needs,
                                const std::function<void*(int64_t bytes, std::string_view name)>& allocate) {
  const auto largest = [](std::span<const BatchShape> shapes, auto&& of_shape) {
    int64_t m = 0;
    for (const auto& s : shapes) m = std::max<int64_t>(m, of_shape(s));
    return m;
  };
  const auto count = [&](auto&& of_shape) { return std::max(largest(needs.trained, of_shape), largest(needs.passed, of_shape)); };
  const auto floats = [&](int64_t n, std::string_view name) { return static_cast<float*>(allocate(n * 4, name)); };
  const int64_t d = network.width;
  const int64_t times = count([](const BatchShape& s) { return s.timesteps(); });
  const int64_t context = count([](const BatchShape& s) { return s.batch * s.context_rows; });
  const int64_t out = count([&](const BatchShape& s) { return latent_elements(network, s, network.out_channels); });
  const int64_t in = count([&](const BatchShape& s) { return latent_elements(network, s, network.in_channels); });
  const int64_t frames = count([](const BatchShape& s) { return s.batch * s.frames; });
  MicroBuffers m;
  m.timesteps = floats(times, "timesteps");
  m.text = floats(context * network.text_width, "text");
  m.context = floats(context * d, "context");
  m.time = floats(times * d, "time embedding");
  m.modulation = floats(times * 6 * d, "modulation");
  m.embedding_saved = allocate(count([&](const BatchShape& s) { return network.embedding->saved_bytes(s, needs.compute_dtype); }), "embedding saved");
  m.loss_weights = floats(frames, "loss weights");
  if (needs.gradients) {
    m.dcontext = floats(context * d, "context gradient");
    m.dtime = floats(times * d, "time gradient");
    m.dmodulation = floats(times * 6 * d, "modulation gradient");
  }
  if (!needs.clips) return m;
  m.latent = floats(in, "latent");
  m.output = floats(out, "output");
  m.target = floats(out, "target");
  m.shots = static_cast<int32_t*>(allocate(2 * frames * 4, "shots"));
  if (network.needs_displacement) m.displacement = floats(count([](const BatchShape& s) { return 2 * s.rows() * s.frames; }), "displacement");
  if (needs.gradients) m.dtokens = floats(largest(needs.trained, [](const BatchShape& s) { return s.rows(); }) * d, "token gradient");
  if (needs.input_gradients) {
    m.dlatent = floats(in, "latent gradient");
    m.dtext = floats(context * network.text_width, "text gradient");
  }
  return m;
}

}  // namespace megaslide
