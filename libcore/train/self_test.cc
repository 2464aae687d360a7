#include "train/self_test.h"

#include <tuple>

#include "base/error.h"
#include "base/philox.h"
#include "diffusion/flow_matching.h"
#include "model/init_model.h"
#include "model/wan.h"
#include "train/checkpoint.h"
#include "train/step.h"
#include "train/training_data.h"

namespace megaslide {
namespace {

constexpr int kSteps = 5, kMicrobatches = 2, kResumeAfter = 2;

// One way to run the steps.
struct Variant {
  std::string name;
  int threads = 1;
  bool async = true;
  LinkKind link = LinkKind::kEmulated;
  int slots = 2;
  MasterCodec masters = MasterCodec::kSplit;
  MomentCodec moments = MomentCodec::kFp32;
  StashOptions stash = {};
  bool on_device = false;
  double jitter = 0;
  bool resume = false;
  int64_t slab_frames = 0;
  bool on_disk = false;
  ClipMode clip = ClipMode::kExact;
};

HostBatch random_batch(const ModelConfig& config, int64_t step, int micro) {
  HostBatch b;
  b.shape = {1, 3, 4, 6, std::min<int64_t>(config.text_len, 8)};
  const Shape latent{1, config.in_channels, b.shape.frames, b.shape.height * 2, b.shape.width * 2};
  b.latent = HostTensor(DType::kF32, latent);
  b.target = HostTensor(DType::kF32, latent);
  b.text = HostTensor(DType::kF32, {1, b.shape.context_rows, config.text_dim});
  b.timesteps = HostTensor(DType::kF32, {1});
  const auto fill = [&](HostTensor& t, int64_t which) {
    fill_normal({t.f32(), static_cast<size_t>(t.elements())}, 11, RandomPurpose::kTest, sample_series(step, 8 * micro + which));
  };
  fill(b.latent, 0);
  fill(b.target, 1);
  fill(b.text, 2);
  b.timesteps.f32()[0] = 100 + 150 * static_cast<float>(step);
  return b;
}

class Runner {
 public:
  explicit Runner(const SelfTestOptions& o) : options_(o), network_(make_wan_network(o.model)) {}

  std::string run(const Variant& v) const {
    if (!v.resume) {
      HostStore store(network_, store_options(v));
      start(store);
      return state_hash(store, steps(v, store, 0, kSteps), pool(v));
    }
    RunState state;
    {
      HostStore store(network_, store_options(v));
      start(store);
      state = steps(v, store, 0, kResumeAfter);
      ModelManifest manifest;
      manifest.config = options_.model;
      CheckpointFolder(options_.scratch_dir).save(store, manifest, state, 0, pool(v));
    }
    HostStore store(network_, store_options(v));
    state = load_checkpoint(*CheckpointFolder(options_.scratch_dir).latest(), store, pool(v));
    return state_hash(store, steps(v, store, state.step, kSteps), pool(v));
  }

 private:
  HostStoreOptions store_options(const Variant& v) const {
    HostStoreOptions o{DType::kBF16, true, v.masters, DType::kBF16, false};
    o.moments = v.moments;
    o.gradient_slots = gradient_slots(v.clip);
    o.on_disk = v.on_disk;
    o.tier_path = options_.scratch_dir;
    o.slots = v.slots;
    return o;
  }
  ThreadPool& pool(const Variant&) const { return pool_; }

  void start(HostStore& store) const {
    for (int m = 0; m < store.modules(); ++m)
      store.change_module(m, [&](ModuleState& s) {
        for (size_t i = 0; i < s.module->params().size(); ++i) {
          const ParamSpec& spec = s.module->params()[i];
          std::vector<float> p(static_cast<size_t>(element_count(spec.shape)));
          fill_initial(p, spec, 3, static_cast<uint64_t>(m) << 32 | i);
          store.write_master(pool_, m, s.module->layout().offset[i], static_cast<int64_t>(p.size()), p.data());
        }
      });
  }

  // Steps (from, to] on `store`; returns the state after them.
  RunState steps(const Variant& v, HostStore& store, int64_t from, int64_t to) const {
    const auto device = make_device(options_.backend, {.threads = v.threads, .async = v.async, .link = v.link, .jitter = v.jitter});
    PipelineOptions pipeline;
    pipeline.slots = v.slots;
    pipeline.shapes = {random_batch(options_.model, 1, 0).shape};
    pipeline.max_microbatches = kMicrobatches;
    pipeline.stash = v.stash;
    pipeline.slab_frames = v.slab_frames;
    OptimizerOptions optimizer;
    optimizer.clip = v.clip;
    optimizer.on_device = v.on_device;
    TrainStep step(*device, network_, store, pipeline, optimizer, from);
    for (int64_t s = from + 1; s <= to; ++s) {
      std::vector<HostBatch> batches;
      std::vector<MicroBatch> views;
      batches.reserve(kMicrobatches);
      views.reserve(kMicrobatches);
      for (int a = 0; a < kMicrobatches; ++a) batches.push_back(random_batch(options_.model, s, a));
      for (const auto& b : batches) views.push_back(b.view());
      step.begin(views, 1e-3);
      step.finish();
    }
    step.drain();
    RunState state;
    state.step = to;
    state.updates = step.updates();
    state.seed = 11;
    return state;
  }

  const SelfTestOptions& options_;
  Network network_;
  mutable ThreadPool pool_{2};
};

// Blocks that see whole clips become such as see a part of them.
AttentionConfig with_local_attention(AttentionConfig a) {
  const auto local = [](AttentionKind& kind) {
    if (kind == AttentionKind::kDense || kind == AttentionKind::kDenseMaterialised) kind = AttentionKind::kWindow;
  };
  local(a.kind);
  for (AttentionKind& kind : a.per_layer) local(kind);
  a.dsa.pooled = false;
  if (a.dsa.offsets == DsaOffsets::kNetGiven) a.dsa.offsets = DsaOffsets::kNetMotion;
  return a;
}

}  // namespace

ModelConfig self_test_model() {
  ModelConfig c;
  c.name = "self-test";
  c.dim = 96;
  c.heads = 3;
  c.ffn_dim = 192;
  c.layers = 3;
  c.text_dim = 32;
  c.text_len = 8;
  c.freq_dim = 64;
  c.attention.kind = AttentionKind::kDsa;
  c.attention.per_layer = {AttentionKind::kDsa, AttentionKind::kDense, AttentionKind::kDsa};
  c.attention.dsa = {{3, 3, 3}, {1, 1, 1}, DsaMode::kFull, 3};
  return c;
}

std::vector<SelfTestComparison> self_test(const SelfTestOptions& options, const std::function<void(const SelfTestComparison&)>& report) {
  const Runner runner(options);
  const int n = std::max(2, options.threads);
  const std::string expected = runner.run({.name = "sync", .async = false});
  std::vector<Variant> variants{
      {.name = "async = sync"},
      {.name = fmt::format("{} threads = 1 thread", n), .threads = n},
      {.name = "shared link = emulated link", .threads = n, .link = LinkKind::kShared},
      {.name = "4 slots = 2 slots", .threads = n, .slots = 4},
      {.name = "fp32 masters = split masters", .threads = n, .masters = MasterCodec::kFp32},
      {.name = "inputs of layers on the host = on the device", .threads = n, .stash = {StashPlace::kHost, 1}},
      {.name = "segments of 2 layers = all inputs kept", .threads = n, .stash = {StashPlace::kDevice, 2}},
      {.name = "segments on the host = all inputs kept", .threads = n, .stash = {StashPlace::kHost, 2}},
      {.name = "optimizer on the device = on the host", .threads = n, .on_device = true},
      {.name = "optimizer on a sharing device = on the host", .threads = n, .link = LinkKind::kShared, .on_device = true},
      {.name = "resumed = uninterrupted", .threads = n, .resume = true},
      {.name = "nvme tier = ram tier", .threads = n, .on_disk = true},
  };
  for (int i = 0; i < options.jitter_runs; ++i)
    variants.push_back({.name = fmt::format("jitter run {} = no jitter", i + 1), .threads = n, .jitter = 1e-3});
  std::vector<SelfTestComparison> all;
  const auto compare_in = [&](const Runner& with_model, const Variant& v, const std::string& with) {
    if (options.backend == Backend::kCuda && v.link == LinkKind::kShared) return;  // a GPU has memory of its own
    all.push_back({v.name, with, with_model.run(v)});
    report(all.back());
  };
  const auto compare = [&](const Variant& v, const std::string& with) { compare_in(runner, v, with); };
  for (const Variant& v : variants) compare(v, expected);
  const std::string by_layer = runner.run({.name = "sync", .async = false, .clip = ClipMode::kLayer});
  compare({.name = "clipped by layer: nvme tier = ram tier", .threads = n, .on_disk = true, .clip = ClipMode::kLayer}, by_layer);
  // So has a model that goes through its blocks in slabs.
  SelfTestOptions sliced = options;
  sliced.model.attention = with_local_attention(options.model.attention);
  const Runner slab_runner(sliced);
  const Variant slabs_sync{.name = "sync", .async = false, .slab_frames = 1};
  const std::string slabs = slab_runner.run(slabs_sync);
  std::vector<Variant> slab_variants{
      {.name = fmt::format("slabs: async, {} threads = sync, 1 thread", n), .threads = n, .slab_frames = 1},
      {.name = "slabs: shared link = emulated link", .threads = n, .link = LinkKind::kShared, .slab_frames = 1},
      {.name = "slabs: segments of 2 layers = all inputs kept", .threads = n, .stash = {StashPlace::kHost, 2}, .slab_frames = 1},
  };
  if (options.jitter_runs > 0) slab_variants.push_back({.name = "slabs: jitter = no jitter", .threads = n, .jitter = 1e-3, .slab_frames = 1});
  for (const Variant& v : slab_variants) compare_in(slab_runner, v, slabs);
  // Lossy codecs have states of their own, as well defined.
  for (const auto& [masters, moments, name] : {std::tuple{MasterCodec::kSplit, MomentCodec::kInt8, "int8 moments"},
                                               {MasterCodec::kBf16Sr, MomentCodec::kBf16, "bf16-sr masters, bf16 moments"}}) {
    const Variant sync{.name = "sync", .async = false, .masters = masters, .moments = moments};
    const std::string lossy = runner.run(sync);
    compare({.name = fmt::format("{}: {} threads = 1 thread", name, n), .threads = n, .masters = masters, .moments = moments}, lossy);
    compare({.name = fmt::format("{}: resumed = uninterrupted", name), .threads = n, .masters = masters, .moments = moments, .resume = true}, lossy);
  }
  return all;
}

}  // namespace megaslide
