#include "config/schemas.h"

namespace megaslide {
namespace {

using R = RunConfig;
constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxSteps = 4294967295;  // step and microbatch are parts of the generator's counter
constexpr int64_t kMaxBatch = 65535;

// Changes where or how the work is done, or how much of it, not what a step computes.
void outside_digest(Key& key) { key.in_digest = false; }

void add_dsa_overrides(Schema& s, R::Dsa& d) {
  s.integers("model.dsa.kernel", d.kernel, 1, 63);
  s.numbers("model.dsa.reach", d.reach, between(0, 32));
  s.choice("model.dsa.mode", d.mode, dsa_mode_words());
  s.integer("model.dsa.groups", d.groups, 1, 4096);
  s.choice("model.dsa.offsets", d.offsets, dsa_offsets_words());
  s.number("model.dsa.motion_share", d.motion_share, between(0, 1));
  s.choice("model.dsa.pooled", d.pooled, Schema::Words<bool>{{"true", true}, {"false", false}});
}

Schema dsa_window_schema(DsaHeadWindow& w) {
  Schema s;
  s.integers("layers", w.layers, 0, 4095);
  s.integer("heads", w.heads, 1, 4096);
  s.integers("kernel", w.kernel, 1, 63);
  s.numbers("reach", w.reach, between(0, 32));
  s.choice("mode", w.mode, dsa_mode_words());
  s.integer("groups", w.groups, 1, 4096);
  return s;
}

void add_objective(Schema& s, R::Train& t) {
  using S = TimestepSampling;
  s.choice<S>("train.timestep_sampling", t.timestep_sampling,
              {{"logit_normal", S::kLogitNormal}, {"uniform", S::kUniform}, {"sigmoid", S::kSigmoid}, {"shift", S::kShift}, {"mode", S::kMode}});
  s.number("train.logit_mean", t.logit_mean, between(-20, 20));
  s.number("train.logit_std", t.logit_std, above(0, 20));
  s.number("train.sigmoid_scale", t.sigmoid_scale, above(0, 20));
  // At -1 and at 2/(pi - 2) = 1.752 the density has a pole.
  s.number("train.mode_scale", t.mode_scale, between(-0.99, 1.75));
  s.number("train.flow_shift", t.flow_shift, above(0, 100));
  s.number("train.min_timestep", t.min_timestep, between(0, 999));
  s.number("train.max_timestep", t.max_timestep, between(1, 1000));
  s.integer("train.num_timestep_buckets", t.num_timestep_buckets, 0, 65536);
  using W = LossWeighting;
  s.choice<W>("train.weighting_scheme", t.weighting_scheme,
              {{"none", W::kNone}, {"sigma_sqrt", W::kSigmaSqrt}, {"cosmap", W::kCosmap}, {"logit_normal", W::kLogitNormal}, {"mode", W::kMode}, {"bell", W::kBell}});
  s.choice<LossType>("train.loss_type", t.loss_type, {{"mse", LossType::kMse}, {"huber", LossType::kHuber}, {"smooth_l1", LossType::kSmoothL1}});
  s.number("train.huber_delta", t.huber_delta, between(1e-6, 1e6));
  s.choice<R::FirstFrame>("train.first_frame", t.first_frame, {{"noised", R::FirstFrame::kNoised}, {"clean", R::FirstFrame::kClean}});
}

void add_train(Schema& s, R::Train& t) {
  outside_digest(s.integer("train.max_train_steps", t.max_train_steps, 1, kMaxSteps));
  outside_digest(s.integer("train.max_train_epochs", t.max_train_epochs, 0, kMaxSteps));
  s.integer("train.gradient_accumulation_steps", t.gradient_accumulation_steps, 1, kMaxBatch);
  s.number("train.max_grad_norm", t.max_grad_norm, between(0, 1e30));
  s.choice<R::Clip>("train.clip", t.clip, {{"exact", R::Clip::kExact}, {"layer", R::Clip::kLayer}, {"none", R::Clip::kNone}});
  add_objective(s, t);
  s.integer("train.seed", t.seed, 0, kMaxInteger);
  outside_digest(s.seconds("train.stall_timeout", t.stall_timeout, between(0, 1e6)));
  outside_digest(s.integer("train.stop_after_skipped", t.stop_after_skipped, 0, kMaxSteps));
  outside_digest(s.integer("train.validate_every_n_steps", t.validate_every_n_steps, 1, kMaxSteps));
}

void add_optimizer(Schema& s, R::Optimizer& o) {
  s.number("optimizer.learning_rate", o.learning_rate, above(0, 10));
  s.numbers("optimizer.betas", o.betas, NumberRange{0, 0.9999999, false});
  s.number("optimizer.eps", o.eps, above(0, 1));
  s.number("optimizer.weight_decay", o.weight_decay, between(0, 10));
  using Lr = R::LrScheduler;
  s.choice<Lr>("optimizer.lr_scheduler", o.lr_scheduler, {{"constant", Lr::kConstant}, {"cosine", Lr::kCosine}, {"linear", Lr::kLinear}});
  s.integer("optimizer.lr_warmup_steps", o.lr_warmup_steps, 0, kMaxSteps);
  outside_digest(s.choice<R::OptimizerDevice>("optimizer.device", o.device, {{"cpu", R::OptimizerDevice::kCpu}, {"device", R::OptimizerDevice::kDevice}}));
  s.choice<R::Masters>("optimizer.masters", o.masters,
                       {{"split", R::Masters::kSplit}, {"fp32", R::Masters::kFp32}, {"bf16-sr", R::Masters::kBf16StochasticRounding}});
  s.choice<R::Moments>("optimizer.moments", o.moments, {{"fp32", R::Moments::kFp32}, {"bf16", R::Moments::kBf16}, {"int8", R::Moments::kInt8}});
  s.choice<R::Gradients>("optimizer.gradients", o.gradients, {{"bf16", R::Gradients::kBf16}, {"fp32", R::Gradients::kFp32}});
}

void add_stream(Schema& s, R::Stream& t) {
  outside_digest(s.boolean("stream.async", t.async));
  outside_digest(s.integer("stream.slots", t.slots, 2, 64));
  outside_digest(s.bytes("stream.device_budget", t.device_budget));
  outside_digest(s.bytes("stream.host_budget", t.host_budget));
  outside_digest(s.choice<R::Tier>("stream.tier", t.tier, {{"ram", R::Tier::kRam}, {"nvme", R::Tier::kNvme}}));
  outside_digest(s.text("stream.tier_path", t.tier_path));
  outside_digest(s.choice<R::Stash>("stream.stash", t.stash,
                                    {{"device", R::Stash::kDevice}, {"host", R::Stash::kHost}, {"recompute", R::Stash::kRecompute}}));
  outside_digest(s.integer("stream.segment", t.segment, 1, 4096));
  outside_digest(s.automatic("stream.slabs", t.slabs, 65536));
  outside_digest(s.choice<R::Link>("stream.link.kind", t.link, {{"shared", R::Link::kShared}, {"emulated", R::Link::kEmulated}}));
  outside_digest(s.rate("stream.link.bandwidth", t.link_bandwidth, "B", between(0, 1e15)));
}

void add_sample(Schema& s, R::Sample& t) {
  outside_digest(s.texts("sample.prompts", t.prompts));
  outside_digest(s.integer("sample.every_n_steps", t.every_n_steps, 0, kMaxSteps));
  outside_digest(s.integer("sample.num_frames", t.num_frames, 1, 65536));
  outside_digest(s.size("sample.size", t.width, t.height, true));
  outside_digest(s.integer("sample.steps", t.steps, 1, 1000));
  outside_digest(s.number("sample.guidance_scale", t.guidance_scale, between(0, 100)));
  outside_digest(s.number("sample.flow_shift", t.flow_shift, above(0, 100)));
  outside_digest(s.text("sample.negative_prompt", t.negative_prompt, 16384));
  outside_digest(s.integer("sample.seed", t.seed, 0, kMaxInteger));
}

void add_output(Schema& s, R::Output& o) {
  outside_digest(s.text("output.output_dir", o.output_dir));
  outside_digest(s.integer("output.save_every_n_steps", o.save_every_n_steps, 0, kMaxSteps));
  outside_digest(s.integer("output.checkpoints_total_limit", o.checkpoints_total_limit, 1, 1000000));
  outside_digest(s.text("output.resume_from_checkpoint", o.resume_from_checkpoint));
  outside_digest(s.choice<R::OnCheckpointError>("output.on_checkpoint_error", o.on_checkpoint_error,
                                                {{"stop", R::OnCheckpointError::kStop}, {"continue", R::OnCheckpointError::kContinue}}));
}

}  // namespace

const Schema::Words<AttentionKind>& attention_words() {
  static const Schema::Words<AttentionKind> words = {{"dense", AttentionKind::kDense},
                                                     {"dense-materialised", AttentionKind::kDenseMaterialised},
                                                     {"window", AttentionKind::kWindow},
                                                     {"dsa", AttentionKind::kDsa}};
  return words;
}

const Schema::Words<DsaMode>& dsa_mode_words() {
  static const Schema::Words<DsaMode> words = {{"full", DsaMode::kFull}, {"slice", DsaMode::kSlice}, {"rigid", DsaMode::kRigid}};
  return words;
}

const Schema::Words<DsaOffsets>& dsa_offsets_words() {
  static const Schema::Words<DsaOffsets> words = {{"net", DsaOffsets::kNet}, {"net+motion", DsaOffsets::kNetMotion}, {"net+given", DsaOffsets::kNetGiven}};
  return words;
}

Schema run_schema(RunConfig& c) {
  Schema s;
  s.text("model.path", c.model.path);
  s.choice("model.expert", c.model.expert, Schema::Words<R::Expert>{{"high", R::Expert::kHigh}, {"low", R::Expert::kLow}});
  s.choice("model.attention", c.model.attention, attention_words());
  s.choice<R::ComputeDtype>("model.compute_dtype", c.model.compute_dtype, {{"bf16", R::ComputeDtype::kBf16}, {"fp32", R::ComputeDtype::kFp32}});
  s.boolean("model.fp8_forward", c.model.fp8_forward);
  add_dsa_overrides(s, c.model.dsa);
  s.paths("data.cache", c.data.cache);
  s.text("data.replay", c.data.replay);
  s.text("data.displacement", c.data.displacement);
  s.integers("data.num_repeats", c.data.num_repeats, 1, 1000000);
  s.number("data.caption_dropout_rate", c.data.caption_dropout_rate, between(0, 1));
  s.number("data.validation_fraction", c.data.validation_fraction, between(0, 0.9));
  s.integer("data.batch_size", c.data.batch_size, 1, kMaxBatch);
  s.integer("data.batch_tokens", c.data.batch_tokens, 0, int64_t{1} << 32);
  add_train(s, c.train);
  add_optimizer(s, c.optimizer);
  add_stream(s, c.stream);
  add_sample(s, c.sample);
  add_output(s, c.output);
  outside_digest(s.integer("threads", c.threads, 0, 4096));
  return s;
}

Schema machine_schema(MachineConfig& c) {
  Schema s;
  s.text("name", c.name, 200);
  s.text("sources", c.sources, 4096);
  s.boolean("measured", c.measured);
  s.choice<std::string>("device", c.device, {{"cpu", "cpu"}, {"cuda", "cuda"}});
  s.boolean("unified", c.unified);
  s.integer("threads", c.threads, 1, 4096);
  s.bytes("host.memory", c.host_memory, 1 << 20);
  s.rate("host.bandwidth", c.host_bandwidth, "B", between(0, 1e18));
  s.rate("host.optimizer_bandwidth", c.optimizer_bandwidth, "B", between(0, 1e18));
  s.bytes("disk.free", c.disk_bytes);
  s.rate("disk.bandwidth", c.disk_bandwidth, "B", between(0, 1e18));
  s.rate("disk.read_bandwidth", c.disk_read_bandwidth, "B", between(0, 1e18));
  s.bytes("compute.memory", c.device_memory);
  s.rate("compute.peak_16bit", c.peak_flops, "FLOP", between(0, 1e21));
  s.rate("compute.gemm_bf16", c.gemm_bf16, "FLOP", between(0, 1e21));
  s.rate("compute.gemm_fp32", c.gemm_fp32, "FLOP", between(0, 1e21));
  s.rate("compute.attention", c.attention, "FLOP", between(0, 1e21));
  s.rate("compute.vector_bandwidth", c.vector_bandwidth, "B", between(0, 1e18));
  s.rate("compute.pack_bandwidth", c.pack_bandwidth, "B", between(0, 1e18));
  s.seconds("compute.launch_latency", c.launch_latency, between(0, 1));
  s.rate("link.up", c.link_up, "B", between(0, 1e18));
  s.rate("link.down", c.link_down, "B", between(0, 1e18));
  s.rate("link.both", c.link_both, "B", between(0, 1e18));
  s.number("link.derating", c.link_derating, above(0, 1));
  return s;
}

Schema model_schema(ModelConfig& c) {
  Schema s;
  s.text("name", c.name, 200);
  s.integer("dim", c.dim, 2, 1 << 17);
  s.integer("heads", c.heads, 1, 4096);
  s.integer("ffn_dim", c.ffn_dim, 1, 1 << 20);
  s.integer("layers", c.layers, 1, 4096);
  s.integer("in_channels", c.in_channels, 1, 1024);
  s.integer("out_channels", c.out_channels, 1, 1024);
  s.integer("text_dim", c.text_dim, 1, 1 << 17);
  s.integer("text_len", c.text_len, 1, 1 << 20);
  s.integer("freq_dim", c.freq_dim, 2, 65536);
  s.number("eps", c.eps, above(0, 0.01));
  s.integer("rope_max_seq_len", c.rope_max_seq_len, 1, 1 << 20);
  s.choice("attention", c.attention.kind, attention_words());
  s.choices("attention_per_layer", c.attention.per_layer, attention_words());
  s.integers("dsa.kernel", c.attention.dsa.kernel, 1, 63);
  s.numbers("dsa.reach", c.attention.dsa.reach, between(0, 32));
  s.choice("dsa.mode", c.attention.dsa.mode, dsa_mode_words());
  s.integer("dsa.groups", c.attention.dsa.groups, 1, 4096);
  s.choice("dsa.offsets", c.attention.dsa.offsets, dsa_offsets_words());
  s.number("dsa.motion_share", c.attention.dsa.motion_share, between(0, 1));
  s.boolean("dsa.pooled", c.attention.dsa.pooled);
  s.records("dsa.windows", c.attention.dsa.windows, &dsa_window_schema);
  s.integers("window", c.attention.window, 1, 1024);
  s.choice<CodecKind>("codec", c.codec, {{"none", CodecKind::kNone}, {"haar", CodecKind::kHaar}, {"wan2.1-vae", CodecKind::kWan21Vae}, {"wan2.2-vae", CodecKind::kWan22Vae}});
  s.choice<TextEncoderKind>("text_encoder", c.text_encoder, {{"none", TextEncoderKind::kNone}, {"hashed-ngram", TextEncoderKind::kHashedNgram}, {"umt5", TextEncoderKind::kUmt5}});
  s.integer("num_frames", c.num_frames, 1, 65536);
  s.size("size", c.width, c.height, false);
  s.number("fps", c.fps, above(0, 1000));
  s.integer("steps", c.steps, 1, 1000);
  s.number("flow_shift", c.flow_shift, above(0, 100));
  s.number("guidance_scale", c.guidance_scale, between(0, 100));
  s.number("boundary", c.boundary, between(0, 0.999));
  s.number("guidance_scale_2", c.guidance_scale_2, between(0, 100));
  return s;
}

}  // namespace megaslide
