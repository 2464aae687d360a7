#include "model/wan_vae.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"
#include "kernels/frame/frame_ops.h"
#include "model/clip_traffic.h"

namespace megaslide {
namespace {

const float* floats(const TensorView& v) { return reinterpret_cast<const float*>(v.data); }

void check_finite(const TensorView& v, const char* what) {
  const float* p = floats(v);
  const int64_t n = v.elements();
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(p[i])) continue;
    const int64_t plane = v.shape[2] * v.shape[3];
    throw usage_error(fmt::format("{} {} in channel {}, frame {}, row {}, column {}", what,
                                  std::isnan(p[i]) ? "is not a number" : "is infinite", i / (plane * v.shape[1]),
                                  i / plane % v.shape[1], i / v.shape[3] % v.shape[2], i % v.shape[3]),
                      "look for where the values come from: a damaged cache, or training that has diverged");
  }
}

// [p²·C, T, h, w] to [C, T, p·h, p·w]: channel (c·p + r)·p + q is row q, column r of a patch.
HostTensor lay_out_patches(HostTensor t, int64_t p) {
  if (p == 1) return t;
  const Shape& s = t.shape();
  HostTensor out(DType::kF32, {s[0] / (p * p), s[1], s[2] * p, s[3] * p});
  for (int64_t c = 0; c < s[0]; ++c)
    for (int64_t f = 0; f < s[1]; ++f)
      for (int64_t y = 0; y < s[2]; ++y) {
        const float* from = t.f32() + ((c * s[1] + f) * s[2] + y) * s[3];
        const int64_t plane = c / (p * p), r = c / p % p, q = c % p;
        float* to = out.f32() + ((plane * s[1] + f) * s[2] * p + y * p + q) * s[3] * p + r;
        for (int64_t x = 0; x < s[3]; ++x) to[x * p] = from[x];
      }
  return out;
}

// Nothing under way uses what is declared before it when that goes, also where an error ends it.
class Settled {
 public:
  explicit Settled(ModelMemory* memory) : memory_(memory) {}
  ~Settled() {
    if (memory_) memory_->settle();
  }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

 private:
  ModelMemory* memory_;
};

}  // namespace

WanVae::WanVae(const std::string& folder, std::string identity, const WanVaeOptions& options)
    : folder_(folder),
      identity_(std::move(identity)),
      config_(read_wan_vae_config(folder + "/config.json")),
      options_(options),
      source_(SafetensorsSource::open(folder)) {
  check_wan_vae_tensors(source_, config_);
  const VaeTiling& t = options_.tiling;
  if (t.enabled && (t.stride < spatial_stride() || t.tile < t.stride || t.tile % spatial_stride() != 0 ||
                    t.stride % spatial_stride() != 0))
    throw usage_error(fmt::format("tiles of {} pixels every {} pixels do not fit the autoencoder", t.tile, t.stride),
                      fmt::format("use multiples of {}, the tile no smaller than its stride", spatial_stride()));
  encoder_.steps = wan_vae_steps(config_, WanVaeSide::kEncoder);
  decoder_.steps = wan_vae_steps(config_, WanVaeSide::kDecoder);
}

WanVae::~WanVae() = default;

const WanVae::Side& WanVae::loaded(Stream& stream, WanVaeSide which) const {
  const Side& side = which == WanVaeSide::kEncoder ? encoder_ : decoder_;
  std::call_once(side.once, [&] { side.weights = load_wan_vae_side(stream, options_.memory, source_, side.steps, dtype(which)); });
  return side;
}

HostTensor WanVae::run(ThreadPool& pool, WanVaeSide which, const TensorView& in, const Region& g, int64_t out_patch,
                       const WanVaeObserver* observer) const {
  ModelMemory* memory = options_.memory;
  PoolStream processor(pool);
  Stream& stream = memory ? memory->stream() : processor;
  const bool encodes = which == WanVaeSide::kEncoder;
  const int64_t r = temporal_stride(), frames = in.shape[1], patch = encodes ? config_.patch : 1;
  if (memory) check_device(which, g.height, g.width, in.shape[3] / patch);
  const Side& side = loaded(stream, which);
  WanVaeNetwork network(side.steps, side.weights, g.height, g.width, dtype(which), observer, memory);
  const ModelBuffer deviations = encodes ? ModelBuffer() : vector(config_.latents_std),
                    means = encodes ? ModelBuffer() : vector(config_.latents_mean);
  ClipReader reader(memory, in, g.y * patch, g.height * patch);
  ClipWriter writer(memory, encodes ? (frames - 1) / r + 1 : r * (frames - 1) + 1);
  const Settled settled(memory);
  FramePlanes planes{.plane = reader.plane(), .width = in.shape[3], .patch = patch, .count = side.steps.front().in};
  const auto sink = [&](const void* frame, const FrameLayout& l) {
    const int64_t width = l.width * out_patch;
    float* to = writer.next(l.channels / (out_patch * out_patch), l.height * out_patch, width);
    frame_to_planes(stream, to, frame, l,
                    {.plane = writer.plane(), .width = width, .patch = out_patch, .count = l.channels});
    writer.written();
  };
  for (int64_t t = 0; t < frames; ++t) {
    frame_from_planes(stream, network.input(), network.input_layout(), reader.next(t) + g.x * patch, planes,
                      deviations.f32(), means.f32());
    reader.read();
    network.push(stream, sink);
  }
  return writer.finish();
}

ModelBuffer WanVae::vector(const std::vector<float>& values) const {
  HostTensor host(DType::kF32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), host.f32());
  return ModelBuffer::holding(options_.memory, std::move(host), "codec: a vector");
}

int64_t WanVae::device_bytes(WanVaeSide which, int64_t height, int64_t width, int64_t across) const {
  const bool encodes = which == WanVaeSide::kEncoder;
  const Side& side = encodes ? encoder_ : decoder_;
  // Pixels laid out or in patches yet: as many values either way. What goes in goes in whole rows.
  const int64_t cells = spatial_stride() / config_.patch, p = config_.patch * config_.patch, z = config_.z_dim;
  const int64_t pixels = encodes ? ClipReader::device_bytes(3 * p, height, across)
                                 : ClipWriter::device_bytes(3 * p, height * cells, width * cells);
  const int64_t latent = encodes ? ClipWriter::device_bytes(2 * z, height / cells, width / cells)
                                 : ClipReader::device_bytes(z, height, across);
  const int64_t vectors = encodes ? 0 : 2 * ModelMemory::rounded(z * static_cast<int64_t>(sizeof(float)));
  return WanVaeNetwork::working_bytes(side.steps, height, width, dtype(which), true) + pixels + latent + vectors;
}

void WanVae::check_device(WanVaeSide which, int64_t height, int64_t width, int64_t across) const {
  const Side& side = which == WanVaeSide::kEncoder ? encoder_ : decoder_;
  const int64_t frames = device_bytes(which, height, width, across), room = options_.memory->available();
  WanVaeWeightBytes weights;
  if (side.weights.empty()) weights = wan_vae_weight_bytes(side.steps, dtype(which));
  const int64_t need = weights.held + std::max(weights.passing, frames);
  if (need <= room) return;
  throw Error(fmt::format("the autoencoder takes {} of the device's memory to {}, {} of them for frames; {} are free",
                          format_bytes(need), which == WanVaeSide::kEncoder ? "encode" : "decode", format_bytes(frames),
                          format_bytes(room)),
              options_.tiling.enabled ? "use a smaller size, --compute-dtype bf16, or --device cpu"
                                      : "use --vae-tiling, --compute-dtype bf16, a smaller size, or --device cpu",
              ErrorKind::kNo);
}

int64_t WanVae::decoding_device_bytes(int64_t height, int64_t width) const {
  if (!options_.memory) return 0;
  const VaeTiling& t = options_.tiling;
  const int64_t s = spatial_stride();
  const auto cells = [&](int64_t pixels) { return (t.enabled ? std::min(pixels, t.tile) : pixels) / s; };
  const WanVaeWeightBytes weights = wan_vae_weight_bytes(decoder_.steps, options_.decode_dtype);
  return weights.held + std::max(weights.passing, device_bytes(WanVaeSide::kDecoder, cells(height), cells(width), width / s));
}

std::optional<TileGrid> WanVae::tiles(WanVaeSide side, const TensorView& in) const {
  // Cells of the network's input, and of its output a cell of input: diffusers counts both in units of patches.
  const int64_t cells = spatial_stride() / config_.patch, patch = config_.patch;
  const VaeTiling& t = options_.tiling;
  TileGrid g{};
  if (side == WanVaeSide::kEncoder) {
    g.height = in.shape[2] / patch;
    g.width = in.shape[3] / patch;
    g.tile = t.tile;
    g.stride = t.stride;
    g.out_height = g.height / cells;
    g.out_width = g.width / cells;
    g.out_stride = t.stride / cells;
    g.blend = t.tile / cells - g.out_stride;
  } else {
    g.height = in.shape[2];
    g.width = in.shape[3];
    g.tile = t.tile / spatial_stride();
    g.stride = t.stride / spatial_stride();
    g.out_height = g.height * cells;
    g.out_width = g.width * cells;
    g.out_stride = t.stride / patch;
    g.blend = t.tile / patch - g.out_stride;
  }
  if (!t.enabled || (g.height <= g.tile && g.width <= g.tile)) return std::nullopt;
  return g;
}

HostTensor WanVae::run_tiles(ThreadPool& pool, WanVaeSide side, const TensorView& in, const TileGrid& grid) const {
  return blend_tiles(grid, [&](int64_t y, int64_t x, int64_t h, int64_t w) {
    return run(pool, side, in, {y, x, h, w}, 1, nullptr);
  });
}

HostTensor WanVae::run_encoder(ThreadPool& pool, const TensorView& video, const WanVaeObserver* observer) const {
  check_video_shape(*this, video);
  return run(pool, WanVaeSide::kEncoder, video, {0, 0, video.shape[2] / config_.patch, video.shape[3] / config_.patch},
             1, observer);
}

HostTensor WanVae::run_decoder(ThreadPool& pool, const TensorView& latent, const WanVaeObserver* observer) const {
  check_latent_shape(*this, latent);
  return run(pool, WanVaeSide::kDecoder, latent, {0, 0, latent.shape[2], latent.shape[3]}, 1, observer);
}

VideoCodec::Encoded WanVae::encode_moments(ThreadPool& pool, const TensorView& video) const {
  check_video_shape(*this, video);
  check_finite(video, "a pixel");
  const auto grid = tiles(WanVaeSide::kEncoder, video);
  const HostTensor moments = grid ? run_tiles(pool, WanVaeSide::kEncoder, video, *grid) : run_encoder(pool, video);
  const Shape& s = moments.shape();
  const Shape shape = {config_.z_dim, s[1], s[2], s[3]};
  Encoded out{HostTensor(DType::kF32, shape), HostTensor(DType::kF32, shape), HostTensor(DType::kF32, shape)};
  std::memcpy(out.mean.f32(), moments.f32(), static_cast<size_t>(out.mean.bytes()));
  std::memcpy(out.logvar.f32(), moments.f32() + out.mean.elements(), static_cast<size_t>(out.mean.bytes()));
  const int64_t plane = s[1] * s[2] * s[3];
  for (int64_t c = 0; c < config_.z_dim; ++c) {
    const float mean = config_.latents_mean[static_cast<size_t>(c)],
                deviation = config_.latents_std[static_cast<size_t>(c)];
    for (int64_t i = c * plane; i < (c + 1) * plane; ++i)
      out.normalised.f32()[i] = (out.mean.f32()[i] - mean) / deviation;
  }
  return out;
}

HostTensor WanVae::decode(ThreadPool& pool, const TensorView& latent) const {
  check_latent_shape(*this, latent);
  check_finite(latent, "a latent value");
  if (const auto grid = tiles(WanVaeSide::kDecoder, latent))
    return lay_out_patches(run_tiles(pool, WanVaeSide::kDecoder, latent, *grid), config_.patch);
  return run(pool, WanVaeSide::kDecoder, latent, {0, 0, latent.shape[2], latent.shape[3]}, config_.patch, nullptr);
}

int64_t WanVae::working_bytes(int64_t frames, int64_t height, int64_t width) const {
  const VaeTiling& t = options_.tiling;
  const auto bounded = [&](int64_t n, int64_t tile) { return t.enabled ? std::min(n, tile) : n; };
  const int64_t s = spatial_stride(), p = config_.patch;
  const int64_t encoder = WanVaeNetwork::working_bytes(encoder_.steps, bounded(height / p, t.tile),
                                                       bounded(width / p, t.tile), options_.encode_dtype);
  const int64_t decoder = WanVaeNetwork::working_bytes(decoder_.steps, bounded(height / s, t.tile / s),
                                                       bounded(width / s, t.tile / s), options_.decode_dtype);
  // A stream: the frames' number does not count, but for the pixels of a tile and of the seams it leaves.
  const bool tiled = t.enabled && (height > t.tile || width > t.tile);
  const int64_t blend = t.tile - t.stride;
  const int64_t pixels = tiled ? t.tile * t.tile + blend * (t.tile + width) : 0;
  return std::max(encoder, decoder) + 3 * frames * pixels * static_cast<int64_t>(sizeof(float));
}

}  // namespace megaslide
