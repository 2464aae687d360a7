#include "train/probe.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "io/safetensors.h"
#include "model/wan.h"
#include "stream/pipeline.h"
#include "train/training_data.h"

namespace megaslide {
namespace {

struct ProbeBatch {
  BatchShape shape;
  HostTensor latent, timesteps, text, target, displacement;
};

// [B], [B, T] or [B, tokens] for a latent [B, C, T, h, w].
bool goes_with(const Shape& timesteps, const Shape& latent) {
  if (timesteps.empty() || timesteps[0] != latent[0] || timesteps.size() > 2) return false;
  return timesteps.size() == 1 || timesteps[1] == latent[2] || timesteps[1] == latent[2] * (latent[3] / 2) * (latent[4] / 2);
}

// Timesteps a sample as the network reads them: one, or one a latent frame; one a token is taken where all tokens of a
// frame agree.
void settle_timesteps(ProbeBatch& b, const std::string& path) {
  const Shape& s = b.timesteps.shape();
  if (s.size() == 1) return;
  b.shape.times = b.shape.frames;
  if (s[1] == b.shape.frames) return;
  const int64_t frame = b.shape.height * b.shape.width, n = b.shape.batch * b.shape.frames;
  HostTensor a_frame(DType::kF32, {b.shape.batch, b.shape.frames});
  for (int64_t i = 0; i < n; ++i) {
    const float* t = b.timesteps.f32() + i * frame;
    if (std::any_of(t, t + frame, [&](float x) { return x != t[0]; }))
      throw Error(fmt::format("{}: timesteps differ within latent frame {}", path, i % b.shape.frames), "give one value a frame");
    a_frame.f32()[i] = t[0];
  }
  b.timesteps = std::move(a_frame);
}

ProbeBatch read_batch(const std::string& path, const ModelConfig& config) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  ProbeBatch b;
  b.latent = read_f32(file, "latent");
  b.timesteps = read_f32(file, "timesteps");
  b.text = read_f32(file, "text");
  const Shape &x = b.latent.shape(), &text = b.text.shape();
  if (x.size() != 5 || x[1] != config.in_channels || text.size() != 3 || text[0] != x[0] || text[2] != config.text_dim ||
      !goes_with(b.timesteps.shape(), x))
    throw Error(fmt::format("{}: latent {}, timesteps {} and text {} do not go with each other or the model", path, to_string(x),
                            to_string(b.timesteps.shape()), to_string(text)),
                fmt::format("latent [B,{},T,h,w], timesteps [B], [B,T] or [B,tokens], text [B,S,{}]", config.in_channels, config.text_dim));
  b.shape = batch_shape_of({x[1], x[2], x[3], x[4]}, x[0], text[1], path);
  settle_timesteps(b, path);
  if (file.find("target")) b.target = read_f32(file, "target");
  const Shape out{x[0], config.out_channels, x[2], x[3], x[4]};
  if (config.attention.needs_displacement()) b.displacement = read_f32(file, "displacement");
  // As data.displacement holds it for a clip.
  const Shape everywhere{x[0], b.shape.frames, b.shape.height, b.shape.width, b.shape.frames, 2};
  if (!b.displacement.empty() && b.displacement.shape() != everywhere)
    throw Error(fmt::format("{}: displacement is {}, the batch's tokens are {}", path, to_string(b.displacement.shape()), to_string(everywhere)));
  if (!b.target.empty() && b.target.shape() != out)
    throw Error(fmt::format("{}: target is {}, the model's output {}", path, to_string(b.target.shape()), to_string(out)));
  return b;
}

// The parameters' gradients under their diffusers names.
std::vector<std::pair<std::string, TensorView>> gradients(const HostStore& store) {
  std::vector<std::pair<std::string, TensorView>> all;
  for (int m = 0; m < store.modules(); ++m) {
    const ModuleState& s = store.module(m);
    for (size_t i = 0; i < s.module->params().size(); ++i)
      all.emplace_back("grad." + s.prefix + s.module->params()[i].name,
                       TensorView{DType::kF32, s.module->params()[i].shape,
                                  static_cast<const std::byte*>(s.gradient) + s.module->layout().offset[i] * 4});
  }
  return all;
}

}  // namespace

double probe(const ModelDirectory& model, const std::string& batch_path, const std::string& out_path, DType compute_dtype, int threads, Backend backend) {
  const ModelConfig& config = model.config();
  const ProbeBatch batch = read_batch(batch_path, config);
  const bool training = !batch.target.empty();
  const Network network = make_wan_network(config);
  HostStore store(network, {compute_dtype, training, MasterCodec::kFp32, DType::kF32, false});
  ThreadPool pool(threads);
  load_state(store, model, pool, false);
  const auto device = make_device(backend, {.threads = threads, .link = LinkKind::kEmulated});
  PipelineOptions options;
  options.compute_dtype = compute_dtype;
  options.training = training;
  options.shapes = {batch.shape};
  options.input_gradients = training;
  Pipeline pipeline(*device, network, store, options);
  HostTensor out(DType::kF32, {batch.shape.batch, config.out_channels, batch.shape.frames, batch.shape.height * 2, batch.shape.width * 2});
  const MicroBatch view{batch.shape, batch.latent.f32(), batch.timesteps.f32(), batch.text.f32(), training ? batch.target.f32() : nullptr,
                        nullptr, nullptr, batch.displacement.empty() ? nullptr : batch.displacement.f32()};
  if (!training) {
    device->synchronize(pipeline.predict(view, out.f32()));
    write_safetensors(out_path, {{"out", out.view()}});
    return std::nan("");
  }
  HostTensor dlatent(DType::kF32, batch.latent.shape()), dtext(DType::kF32, batch.text.shape()), loss(DType::kF32, {1});
  device->synchronize(pipeline.train({&view, 1}));
  device->synchronize(pipeline.read_output(0, out.f32()));
  device->synchronize(pipeline.read_input_gradients(0, dlatent.f32(), dtext.f32()));
  loss.f32()[0] = static_cast<float>(pipeline.losses()[0]);
  auto tensors = gradients(store);
  tensors.insert(tensors.end(), {{"out", out.view()}, {"loss", loss.view()}, {"grad.latent", dlatent.view()}, {"grad.text", dtext.view()}});
  write_safetensors(out_path, tensors);
  return pipeline.losses()[0];
}

}  // namespace megaslide
