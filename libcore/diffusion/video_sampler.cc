#include "diffusion/video_sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/atomic_file.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "diffusion/device_memory.h"
#include "diffusion/flow_matching.h"
#include "io/model_directory.h"
#include "model/text_encoder.h"
#include "model/video_codec.h"
#include "model/wan.h"
#include "stream/weight_reader.h"

namespace megaslide {
namespace {

constexpr int64_t kPatch = 2;

// All weights stay on the device, packed once, where they are this small; larger models are streamed through two slots.
constexpr int64_t kResidentBytes = int64_t{1} << 30;
constexpr int kStreamedSlots = 2;
// A layer of a large model from a slow disk takes its time; only a stream that stands still for so long has failed.
constexpr double kStallSeconds = 1800;
constexpr const char* kSecondNetwork = "transformer_2";

// "816 or 832": the multiples of `step` around `value`, both at least `step`.
std::string nearest_multiples(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return below < step ? fmt::format("{}", step) : fmt::format("{} or {}", below, below + step);
}

}  // namespace

WeightPlace parse_weight_place(const std::string& word) {
  if (word == "auto") return WeightPlace::kAuto;
  if (word == "memory") return WeightPlace::kMemory;
  if (word == "disk") return WeightPlace::kDisk;
  throw usage_error(fmt::format("weights: {}", word), "use auto, memory or disk");
}

std::vector<std::string> sampling_option_errors(const ModelConfig& model, const VideoSamplerOptions& o) {
  std::vector<std::string> errors;
  const int64_t unit = model.spatial_stride() * kPatch, stride = model.temporal_stride();
  const auto side = [&](const char* name, int64_t value) {
    if (value < unit || value % unit)
      errors.push_back(fmt::format("--size: {} {} is no multiple of {}; use {}", name, value, unit, nearest_multiples(value, unit)));
    else if (value / unit > model.rope_max_seq_len)
      errors.push_back(fmt::format("--size: {} {} is beyond this model's {}", name, value, unit * model.rope_max_seq_len));
  };
  side("width", o.width);
  side("height", o.height);
  if (o.num_frames < 1 || (o.num_frames - 1) % stride) {
    const int64_t below = (std::max<int64_t>(o.num_frames, 1) - 1) / stride * stride + 1;
    errors.push_back(fmt::format("--num-frames: {} is not {}k + 1; use {} or {}", o.num_frames, stride, below, below + stride));
  } else if ((o.num_frames - 1) / stride + 1 > model.rope_max_seq_len) {
    errors.push_back(fmt::format("--num-frames: {} is beyond this model's {}", o.num_frames, (model.rope_max_seq_len - 1) * stride + 1));
  }
  if (o.sampling.steps < 1 || o.sampling.steps > 1000) errors.push_back(fmt::format("--steps: {}; use 1 to 1000", o.sampling.steps));
  if (!(o.sampling.flow_shift > 0) || !std::isfinite(o.sampling.flow_shift))
    errors.push_back(fmt::format("--flow-shift: {}; use a number > 0", o.sampling.flow_shift));
  if (!(o.sampling.guidance_scale >= 1) || !std::isfinite(o.sampling.guidance_scale))
    errors.push_back(fmt::format("--guidance-scale: {}; use a number ≥ 1, where 1 is no guidance", o.sampling.guidance_scale));
  return errors;
}

Shape latent_shape(const ModelConfig& model, int64_t num_frames, int64_t height, int64_t width) {
  return {model.in_channels, (num_frames - 1) / model.temporal_stride() + 1, height / model.spatial_stride(),
          width / model.spatial_stride()};
}

std::vector<ModelDirectory> networks_of(const ModelDirectory& model, const std::string& parts) {
  if (model.config().boundary <= 0) return {model};
  const bool trained_second = model.manifest().source.network == kSecondNetwork;
  const std::string whole = parts.empty() ? model.parts_folder() : parts, beside = model.path() + "/" + kSecondNetwork;
  if (trained_second && !whole.empty()) return {ModelDirectory::open(whole), model};
  const std::string second = ModelDirectory::is_one(beside) ? beside : whole + "/" + kSecondNetwork;
  if (trained_second || !ModelDirectory::is_one(second))
    throw Error(fmt::format("{}: one of two networks that meet at the noise level {}; the other one is missing", model.path(), model.config().boundary),
                "import the whole checkpoint with shard-weights, the folder that holds both networks; for a checkpoint of a run, --parts MODEL names the model that it was trained from");
  return {model, ModelDirectory::open(second)};
}

namespace {

// One network with its weights in host memory, or on their way through it.
struct Expert {
  Expert(const ModelDirectory& model, DType dtype, bool from_disk)
      : directory(model), network(make_wan_network(model.config())),
        store(network, {.compute_dtype = dtype, .streamed_slots = from_disk ? kStreamedSlots : 0}) {}

  ModelDirectory directory;
  Network network;
  HostStore store;
};

int64_t weight_bytes(const ModelDirectory& model, DType dtype) { return parameter_count(model.config()) * dtype_bytes(dtype); }

bool read_from_disk(const std::vector<ModelDirectory>& networks, const VideoSamplerOptions& o) {
  if (o.weights != WeightPlace::kAuto) return o.weights == WeightPlace::kDisk;
  int64_t bytes = 0;
  for (const auto& n : networks) bytes += weight_bytes(n, o.compute_dtype);
  const int64_t available = available_memory();
  // Packed copies of what is in use come on top.
  const bool fits = bytes <= available / 4 * 3;
  if (!fits) log_info("{} of weights, {} of memory available: layers are read from disk in each step", format_bytes(bytes), format_bytes(available));
  return !fits;
}

}  // namespace

struct VideoSampler::Impl {
  ModelConfig config;
  VideoSamplerOptions options;
  std::unique_ptr<Device> device;
  std::vector<std::unique_ptr<Expert>> experts;
  BatchShape shape;
  int active = -1;
  std::unique_ptr<WeightReader> reader;
  std::unique_ptr<Pipeline> pipeline;

  Impl(const ModelDirectory& model, const VideoSamplerOptions& o)
      : config(model.config()), options(o),
        device(make_device(o.backend, {.threads = o.threads, .stall_timeout = kStallSeconds})) {
    const std::vector<ModelDirectory> networks = networks_of(model, o.parts);
    const bool from_disk = read_from_disk(networks, o);
    ThreadPool pool(o.threads);
    for (const auto& n : networks) {
      experts.push_back(std::make_unique<Expert>(n, o.compute_dtype, from_disk));
      load_state(experts.back()->store, n, pool, false);
    }
    const Shape latent = latent_shape(config, o.num_frames, o.height, o.width);
    shape = sampling_shape(experts[0]->network, latent[1], latent[2], latent[3], config.text_len, o.sampling);
    use(0);
  }

  // Weights lie there twice, the second time packed.
  int64_t resident_bytes() const { return device->backend() == Backend::kCuda ? device->memory().budget / 3 : kResidentBytes; }

  void leave_device() {
    pipeline.reset();
    reader.reset();
    active = -1;
  }

  // One pipeline at a time: its buffers are those of one network.
  Pipeline& use(int k) {
    if (k == active) return *pipeline;
    leave_device();
    Expert& e = *experts[static_cast<size_t>(k)];
    PipelineOptions o;
    o.compute_dtype = options.compute_dtype;
    o.shapes = {shape};
    PipelineHooks hooks;
    if (e.store.options().streamed_slots > 0) {
      o.slots = kStreamedSlots;
      reader = std::make_unique<WeightReader>(*device, e.store, e.directory);
      hooks = reader->hooks();
    } else if (e.store.ledger().weights <= resident_bytes()) {
      o.slots = std::max<int>(2, static_cast<int>(config.layers));
    }
    pipeline = std::make_unique<Pipeline>(*device, e.network, e.store, o, hooks);
    active = k;
    return *pipeline;
  }
};

VideoSampler::VideoSampler(const ModelDirectory& model, const VideoSamplerOptions& options) {
  if (const auto errors = sampling_option_errors(model.config(), options); !errors.empty())
    throw usage_error(fmt::format("{}", fmt::join(errors, "\n  ")));
  impl_ = std::make_unique<Impl>(model, options);
}
VideoSampler::~VideoSampler() = default;

HostTensor VideoSampler::initial_noise(uint64_t seed) const {
  const auto& o = impl_->options;
  HostTensor noise(DType::kF32, latent_shape(impl_->config, o.num_frames, o.height, o.width));
  fill_normal({noise.f32(), static_cast<size_t>(noise.elements())}, seed, RandomPurpose::kSample, 0);
  return noise;
}

HostTensor VideoSampler::sample(HostTensor noise, const HostTensor& text, const HostTensor& negative, const StopToken& stop,
                                const std::function<void(int64_t, std::span<const float>)>& on_step) const {
  const auto span = [](const HostTensor& t) {
    return std::span<const float>(t.empty() ? nullptr : t.f32(), t.empty() ? 0 : static_cast<size_t>(t.elements()));
  };
  const LatentRequest request{impl_->shape, {noise.f32(), static_cast<size_t>(noise.elements())}, span(text), span(negative)};
  sample_latent(*impl_->device, [this](int k) -> Pipeline& { return impl_->use(k); }, request, impl_->options.sampling, stop,
                [&](int64_t k) { if (on_step) on_step(k, span(noise)); });
  return noise;
}

namespace {

HostTensor clipped(HostTensor video) {
  float* p = video.f32();
  for (int64_t i = 0; i < video.elements(); ++i) p[i] = std::clamp(p[i], -1.f, 1.f);
  return video;
}

}  // namespace

HostTensor VideoSampler::decode(const ModelParts& parts, const TensorView& latent, bool vae_tiling) const {
  const VideoSamplerOptions& o = impl_->options;
  if (impl_->device->backend() != Backend::kCuda || !has_learned_codec(parts))
    return decode_latent(parts, latent, o.compute_dtype, o.threads, Backend::kCpu, vae_tiling);
  DeviceModelMemory memory(*impl_->device);
  const auto codec = make_codec(parts, {.decode_dtype = o.compute_dtype, .tiling = vae_tiling, .memory = &memory});
  const int64_t s = codec->spatial_stride();
  if (codec->decoding_device_bytes(latent.shape.at(2) * s, latent.shape.at(3) * s) > memory.available()) impl_->leave_device();
  ThreadPool pool(o.threads);
  return clipped(codec->decode(pool, latent));
}

std::vector<HostTensor> encode_prompt_rows(const ModelParts& parts, std::span<const std::string> prompts, DType compute_dtype, int threads) {
  ThreadPool pool(threads);
  std::vector<HostTensor> rows;
  for (const EncodedText& e : make_text_encoder(parts, compute_dtype)->encode_all(pool, prompts)) {
    if (e.cut > 0)
      log_warning("a prompt has {} tokens, the model reads {}: its end is cut off: \"{:.60}…\"",
                  e.cut + static_cast<int64_t>(e.ids.size()), e.ids.size(), e.cleaned);
    rows.push_back(pad_text(parts.config, e.rows.view()));
  }
  return rows;
}

HostTensor decode_latent(const ModelParts& parts, const TensorView& latent, DType compute_dtype, int threads, Backend backend, bool vae_tiling) {
  ThreadPool pool(threads);
  PartDevice device(has_learned_codec(parts) ? backend : Backend::kCpu, threads);
  return clipped(make_codec(parts, {.decode_dtype = compute_dtype, .tiling = vae_tiling, .memory = device.memory()})->decode(pool, latent));
}

std::vector<Picture> pictures_of(const HostTensor& video) {
  const Shape& s = video.shape();
  const int64_t frames = s[1], height = s[2], width = s[3], plane = height * width;
  std::vector<Picture> pictures(static_cast<size_t>(frames));
  for (int64_t f = 0; f < frames; ++f) {
    Picture& picture = pictures[static_cast<size_t>(f)];
    picture.width = width;
    picture.height = height;
    picture.rgb.resize(static_cast<size_t>(3 * plane));
    for (int64_t c = 0; c < 3; ++c) {
      const float* from = video.f32() + (c * frames + f) * plane;
      for (int64_t i = 0; i < plane; ++i)
        picture.rgb[static_cast<size_t>(3 * i + c)] = static_cast<uint8_t>(std::lround((from[i] + 1) * 127.5f));
    }
  }
  return pictures;
}

}  // namespace megaslide
