#include "config/run_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "config/load.h"
#include "config/search_path.h"

namespace megaslide {
namespace {

std::string message_of(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  try {
    parse_run_config(yaml, "a.yaml", sets);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    return e.message();
  }
  return "no error";
}

TEST(RunConfig, ReadsEverySection) {
  const RunConfig c = parse_run_config(R"(
model: {path: m, attention: dsa, compute_dtype: fp32, dsa: {kernel: [3, 7, 7], reach: [1, 2.5, 0], mode: slice, groups: 2}}
data: {cache: c, batch_size: 2}
train:
  max_train_steps: 12
  stall_timeout: 2min
optimizer:
  learning_rate: 5e-5
  betas: [0.8, 0.95]
  lr_scheduler: cosine
stream: {async: false, device_budget: 1.5GiB, slabs: 8, link: {kind: emulated, bandwidth: 12GB/s}}
sample: {prompts: [one, "two: three"], size: 64x32, guidance_scale: 2}
output: {output_dir: out, resume_from_checkpoint: none}
threads: 3
)", "a.yaml");
  EXPECT_EQ(c.model.path, "m");
  EXPECT_EQ(c.model.attention, AttentionKind::kDsa);
  EXPECT_EQ(c.model.compute_dtype, RunConfig::ComputeDtype::kFp32);
  EXPECT_EQ(c.model.dsa.reach, (std::array<double, 3>{1, 2.5, 0}));
  EXPECT_EQ(c.model.dsa.mode, DsaMode::kSlice);
  EXPECT_EQ(c.train.max_train_steps, 12);
  EXPECT_EQ(c.train.stall_timeout, 120);
  EXPECT_EQ(c.optimizer.betas[0], 0.8);
  EXPECT_EQ(c.optimizer.lr_scheduler, RunConfig::LrScheduler::kCosine);
  EXPECT_FALSE(c.stream.async);
  EXPECT_EQ(c.stream.device_budget, int64_t{3} << 29);
  EXPECT_EQ(c.stream.slabs, 8);
  EXPECT_EQ(c.stream.link_bandwidth, 12e9);
  EXPECT_EQ(c.sample.prompts, (std::vector<std::string>{"one", "two: three"}));
  EXPECT_EQ(c.sample.width, 64);
  EXPECT_EQ(c.sample.height, 32);
  EXPECT_EQ(c.sample.num_frames, std::nullopt);
  EXPECT_EQ(c.threads, 3);
}

TEST(RunConfig, MessagesHaveAPlace) {
  EXPECT_EQ(message_of("optimizer:\n  learning_rate: abc\n"), "a.yaml:2:18: optimizer.learning_rate: expected a number > 0 and <= 10, got \"abc\"");
  EXPECT_EQ(message_of("train:\n  seed: 0x10\n"), "a.yaml:2:9: train.seed: expected an integer >= 0, got \"0x10\"");
  EXPECT_EQ(message_of("stream: {async: yes}\n"), "a.yaml:1:17: stream.async: expected true or false, got \"yes\"");
  EXPECT_EQ(message_of("train:\n  seed: \"5\"\n"), "a.yaml:2:9: train.seed: expected an integer >= 0, got the text \"5\"");
  EXPECT_EQ(message_of("data:\n  batch_size: 0\n"), "a.yaml:2:15: data.batch_size: expected an integer from 1 to 65535, got \"0\"");
  EXPECT_EQ(message_of("optimizer: {lr_scheduler: cosin}\n"), "a.yaml:1:27: optimizer.lr_scheduler: expected one of constant, cosine, linear, got \"cosin\"");
  EXPECT_EQ(message_of("model: {path: [a]}\n"), "a.yaml:1:15: model.path: expected a text, got a list");
  EXPECT_EQ(message_of("model: {path: }\n"), "a.yaml:1:15: model.path: expected a value, got nothing");
  EXPECT_EQ(message_of("stream: {device_budget: 5GBs}\n"), "a.yaml:1:25: stream.device_budget: expected bytes such as 24GiB or 5GB, got \"5GBs\"");
  EXPECT_EQ(message_of("optimizer: {betas: [0.9]}\n"), "a.yaml:1:20: optimizer.betas: expected a list of 2 numbers, got a list of 1");
  EXPECT_EQ(message_of("optimizer: {betas: [0.9, 1]}\n"), "a.yaml:1:26: optimizer.betas: expected a number from 0 to 0.9999999, got \"1\"");
  EXPECT_EQ(message_of("train: 5\n").substr(0, 52), "a.yaml:1:8: train: expected a section with keys max_");
}

TEST(RunConfig, CachesAndRepeatsAreOneOrSeveral) {
  const RunConfig one = parse_run_config("data: {cache: a, num_repeats: 3}\n", "a.yaml"), two = parse_run_config("data: {cache: [a, b], num_repeats: [3, 1]}\n", "a.yaml");
  EXPECT_EQ(one.data.cache, std::vector<std::string>{"a"});
  EXPECT_EQ(one.data.repeats_of(1), 3);
  EXPECT_EQ(two.data.cache, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(two.data.repeats_of(1), 1);
  const auto lines = canonical_lines(one), lines_of_two = canonical_lines(two);
  for (const char* line : {"data.cache=a", "data.num_repeats=3"}) EXPECT_NE(std::find(lines.begin(), lines.end(), line), lines.end()) << line;
  for (const char* line : {"data.cache=[a, b]", "data.num_repeats=[3, 1]"}) EXPECT_NE(std::find(lines_of_two.begin(), lines_of_two.end(), line), lines_of_two.end()) << line;
  EXPECT_EQ(message_of("data: {cache: [a, b], num_repeats: [1, 2, 3]}\n"), "a.yaml:1:36: data.num_repeats: expected one number, or one a cache (2), got 3");
  EXPECT_EQ(message_of("data: {num_repeats: []}\n").substr(0, 67), "a.yaml:1:21: data.num_repeats: expected an integer or a list of int");
  EXPECT_EQ(message_of("data: {num_repeats: 0}\n"), "a.yaml:1:21: data.num_repeats: expected an integer from 1 to 1000000, got \"0\"");
}

TEST(RunConfig, RangesOfTheObjective) {
  for (const char* bad : {"train.timestep_sampling=sigma", "train.logit_std=0", "train.sigmoid_scale=21", "train.mode_scale=1.76", "train.mode_scale=-1", "train.min_timestep=-1",
                          "train.max_timestep=1001", "train.num_timestep_buckets=-1", "train.weighting_scheme=bel", "train.loss_type=l1", "train.huber_delta=0",
                          "train.first_frame=yes", "model.expert=mid", "data.batch_tokens=-1", "train.max_train_epochs=-1", "train.flow_shift=0"})
    EXPECT_THROW(make_run_config({bad}), Error) << bad;
  for (const char* good : {"train.timestep_sampling=shift", "train.timestep_sampling=mode", "train.mode_scale=1.75", "train.min_timestep=999", "train.weighting_scheme=bell",
                           "train.loss_type=smooth_l1", "train.first_frame=clean", "model.expert=low", "train.max_timestep=1"})
    EXPECT_NO_THROW(make_run_config({good})) << good;
}

TEST(RunConfig, UnknownKeysGetTheNearestName) {
  EXPECT_EQ(message_of("optimizer:\n  lerning_rate: 1\n"), "a.yaml:2:3: optimizer.lerning_rate: unknown key; did you mean optimizer.learning_rate?");
  EXPECT_EQ(message_of("train: {learning_rate: 1}\n"), "a.yaml:1:9: train.learning_rate: unknown key; did you mean optimizer.learning_rate?");
  EXPECT_EQ(message_of("optimiser: {eps: 1}\n"), "a.yaml:1:1: optimiser: unknown key; did you mean optimizer?");
  EXPECT_EQ(message_of("train.seed: 1\n"), "a.yaml:1:1: train.seed: unknown key; in a file write seed: under train:");
  EXPECT_EQ(message_of("stream: {link: {speed: 1}}\n"), "a.yaml:1:17: stream.link.speed: unknown key; known here: kind, bandwidth");
}

TEST(RunConfig, AllErrorsAtOnceInOrder) {
  EXPECT_EQ(message_of("data:\n  cache: a\n  cache: b\noptimizer: {lerning_rate: 1, eps: -1}\ntrain:\n  seed: x\n", {"train.seed=y", "nonsense"}),
            "6 errors in the configuration\n"
            "a.yaml:3:3: data.cache: given twice, first in line 2\n"
            "a.yaml:4:13: optimizer.lerning_rate: unknown key; did you mean optimizer.learning_rate?\n"
            "a.yaml:4:35: optimizer.eps: expected a number > 0 and <= 1, got \"-1\"\n"
            "a.yaml:6:9: train.seed: expected an integer >= 0, got \"x\"\n"
            "--set train.seed=y: train.seed: expected an integer >= 0, got \"y\"\n"
            "--set nonsense: expected key=value");
  std::string many;
  for (int i = 0; i < 100; ++i) many += "zzzz" + std::to_string(i) + ": 1\n";
  EXPECT_NE(message_of(many).find("... and 75 more"), std::string::npos);
}

TEST(RunConfig, RelationsBetweenKeys) {
  EXPECT_EQ(message_of("data: {cache: a,\n  replay: b}\n"), "a.yaml:2:11: data.replay: data.cache and data.replay exclude each other");
  EXPECT_EQ(message_of("data: {cache: a}\n", {"data.replay=b"}), "--set data.replay=b: data.replay: data.cache and data.replay exclude each other");
  EXPECT_EQ(message_of("stream: {link: {bandwidth: 1GB/s}}\n"),
            "a.yaml:1:28: stream.link.bandwidth: only an emulated link has a bandwidth: set stream.link.kind to emulated");
  EXPECT_EQ(message_of("train: {min_timestep: 500, max_timestep: 400}\n"),
            "a.yaml:1:42: train.max_timestep: expected more than train.min_timestep (500), got 400");
  EXPECT_EQ(message_of("train: {timestep_sampling: sigmoid, flow_shift: 3}\n"),
            "a.yaml:1:49: train.flow_shift: sigmoid is not shifted: set train.timestep_sampling to shift");
  EXPECT_EQ(message_of("data: {batch_size: 2, batch_tokens: 9}\n"), "a.yaml:1:37: data.batch_tokens: data.batch_size and data.batch_tokens exclude each other");
  EXPECT_EQ(message_of("data: {replay: a}\ntrain: {max_train_epochs: 2}\n"),
            "a.yaml:2:27: train.max_train_epochs: stored batches are replayed once: set train.max_train_steps");
  EXPECT_EQ(message_of("sample: {num_frames: 16}\n"), "a.yaml:1:22: sample.num_frames: expected 4k+1, got 16");
}

TEST(RunConfig, SetTakesTheShellsWord) {
  const RunConfig c = parse_run_config("train: {seed: 1}\n", "a.yaml",
                                       {"train.seed=2", "output.output_dir=/tmp/a: b #c", "sample.prompts=[a, 'b, c']", "stream.link={kind: emulated, bandwidth: 2GB/s}",
                                        "model.attention=null", "sample.negative_prompt=\"x y\""});
  EXPECT_EQ(c.train.seed, 2);
  EXPECT_EQ(c.output.output_dir, "/tmp/a: b #c");
  EXPECT_EQ(c.sample.prompts, (std::vector<std::string>{"a", "b, c"}));
  EXPECT_EQ(c.stream.link, RunConfig::Link::kEmulated);
  EXPECT_EQ(c.stream.link_bandwidth, 2e9);
  EXPECT_EQ(c.model.attention, std::nullopt);
  EXPECT_EQ(c.sample.negative_prompt, "x y");
  EXPECT_EQ(message_of("{}", {"train.sed=3"}), "--set train.sed=3: train.sed: unknown key; did you mean train.seed?");
  EXPECT_EQ(message_of("{}", {"data.cache=caf\xe9"}), "--set \"data.cache=caf\\xe9\": not UTF-8 text, which a configuration is");
  EXPECT_EQ(message_of("{}", {"train="}), "--set train=: train: is a section; set one of its keys");
  EXPECT_EQ(message_of("{}", {"train=5"}).substr(0, 55), "--set train=5: train: expected a section with keys max_");
  EXPECT_EQ(message_of("{}", {"=5"}), "--set =5: expected key=value");
  EXPECT_EQ(message_of("{}", {"sample.prompts=[a"}).substr(0, 26), "--set sample.prompts=[a: 1");
  EXPECT_EQ(message_of("{}", {"train.seed="}), "--set train.seed=: train.seed: expected a value, got nothing");
}

TEST(RunConfig, WritesWhatItReads) {
  const RunConfig c = parse_run_config(
      "model: {path: 'a b: c', attention: window}\nsample: {prompts: ['x\"y\\z', 'true', '5', \"line\\nbreak\"]}\nstream: {device_budget: 3GB, slabs: off}\n", "a.yaml");
  const std::string yaml = to_yaml(c);
  const RunConfig d = parse_run_config(yaml, "copy.yaml");
  EXPECT_EQ(to_yaml(d), yaml);
  EXPECT_EQ(d.model.path, "a b: c");
  EXPECT_EQ(d.sample.prompts, c.sample.prompts);
  EXPECT_EQ(d.stream.slabs, RunConfig::kSlabsOff);
  EXPECT_EQ(d.stream.device_budget, 3000000000);
  EXPECT_EQ(d.optimizer.learning_rate, 1e-4);
}

TEST(RunConfig, DigestIsOfWhatAStepComputes) {
  const RunConfig a = make_run_config({});
  for (const char* same : {"train.max_train_steps=7", "output.output_dir=x", "output.save_every_n_steps=3", "sample.prompts=a", "stream.async=false", "threads=2",
                           "stream.device_budget=1GB", "stream.link.kind=emulated", "train.stall_timeout=1"})
    EXPECT_EQ(config_digest(make_run_config({same})), config_digest(a)) << same;
  for (const char* other : {"train.seed=7", "optimizer.learning_rate=0.1", "data.cache=x", "model.attention=dense", "model.dsa.groups=2", "train.flow_shift=3",
                            "train.gradient_accumulation_steps=2", "optimizer.gradients=fp32", "data.caption_dropout_rate=0"})
    EXPECT_NE(config_digest(make_run_config({other})), config_digest(a)) << other;
  const std::vector<std::string> lines = canonical_lines(a);
  EXPECT_TRUE(std::is_sorted(lines.begin(), lines.end()));
  EXPECT_EQ(differing_keys(lines, canonical_lines(make_run_config({"train.seed=8", "model.attention=dense"}))),
            (std::vector<std::string>{"model.attention: was not set, is dense", "train.seed: was 0, is 8"}));
  EXPECT_TRUE(differing_keys(lines, lines).empty());
  EXPECT_EQ(differing_keys({"old.key=1"}, {"new.key=2"}), (std::vector<std::string>{"old.key: was 1, is not set", "new.key: was not set, is 2"}));
}

TEST(RunConfig, UnsupportedSettingsAreNamedTogether) {
  EXPECT_NO_THROW(reject_unsupported(make_run_config({})));
  for (const char* set : {"stream.tier=nvme", "stream.slabs=4", "optimizer.device=device", "model.fp8_forward=true"})
    EXPECT_NO_THROW(reject_unsupported(make_run_config({set}))) << set;
  try {
    reject_unsupported(make_run_config({"optimizer.masters=bf16-sr", "model.compute_dtype=fp32", "optimizer.device=device", "stream.tier=nvme", "model.fp8_forward=true",
                                        "stream.slabs=2"}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(e.message().find("optimizer.masters: bf16-sr with model.compute_dtype: fp32 is not supported by this version; supported: bf16-sr with bf16"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("optimizer.device: device with stream.tier: nvme is not supported by this version; supported: cpu with either"), std::string::npos) << e.message();
    for (const char* beside : {"model.compute_dtype: fp32", "stream.slabs"})
      EXPECT_NE(e.message().find(fmt::format("model.fp8_forward with {} is not supported", beside)), std::string::npos) << e.message();
  }
}

TEST(RunConfig, TrainingNeeds) {
  try {
    require_for_training(make_run_config({"data.replay=x"}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("model.path"), std::string::npos);
    EXPECT_NE(e.message().find("output.output_dir"), std::string::npos);
    EXPECT_EQ(e.message().find("data.cache"), std::string::npos);
  }
  EXPECT_NO_THROW(require_for_training(make_run_config({"data.replay=x", "model.path=m", "output.output_dir=o"})));
}

TEST(RunConfig, ExampleFileShowsEveryKeyWithItsDefault) {
  const std::string path = MEGASLIDE_SOURCE_DIR "/configs/train/finetune.yaml";
  RunConfig c = load_run_config(path);
  c.model.path = c.output.output_dir = "";
  c.data.cache.clear();
  EXPECT_EQ(to_yaml(c), to_yaml(RunConfig{}));
  // With the commented keys switched on it is still read, but for the second source of data.
  std::ifstream file(path);
  std::string all, line;
  while (std::getline(file, line)) {
    const size_t mark = line.find("# ");
    const bool key = mark != std::string::npos && line.find_first_not_of(' ') == mark && mark > 0;
    all += (key ? line.substr(0, mark) + line.substr(mark + 2) : line) + "\n";
  }
  const std::string message = message_of(all);
  EXPECT_NE(message.find("exclude each other"), std::string::npos) << message;
  for (const std::string& key : run_config_keys()) {
    const std::string name = key.substr(key.rfind('.') + 1) + ":";
    EXPECT_NE(all.find(name), std::string::npos) << key;
  }
}

TEST(Configs, EveryFileIsRead) {
  namespace fs = std::filesystem;
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(MEGASLIDE_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string path = entry.path().string(), folder = entry.path().parent_path().filename().string();
    ++files;
    if (folder == "models") EXPECT_NO_THROW(load_model_config(path)) << path;
    else if (folder == "machines") EXPECT_NO_THROW(load_machine_config(path)) << path;
    else EXPECT_NO_THROW(reject_unsupported(load_run_config(path))) << path;
  }
  EXPECT_GE(files, 10u);
}

// Each published model has a run that trains it, and needs nothing but its paths.
TEST(Configs, RunsOfThePublishedModels) {
  set_config_directories({MEGASLIDE_SOURCE_DIR "/configs"});
  const std::vector<std::pair<std::string, std::string>> runs{{"wan2.1-1.3b", "wan2.1-t2v-1.3b"}, {"wan2.1-14b", "wan2.1-t2v-14b"}, {"wan2.2-a14b-high", "wan2.2-t2v-a14b"},
                                                              {"wan2.2-a14b-low", "wan2.2-t2v-a14b"}, {"wan2.2-ti2v-5b", "wan2.2-ti2v-5b"}};
  for (const auto& [name, model] : runs) {
    const RunConfig run = load_run_config(MEGASLIDE_SOURCE_DIR "/configs/train/" + name + ".yaml");
    EXPECT_NO_THROW(require_for_training(run)) << name;
    EXPECT_EQ(run.model.path, "models/" + model);
    const ModelConfig c = load_model_config(model);
    EXPECT_NO_THROW(with_overrides(c, run)) << name;
    EXPECT_EQ(c.boundary > 0, run.model.expert.has_value()) << name;
    EXPECT_EQ(run.train.timestep_sampling, TimestepSampling::kShift);
    EXPECT_TRUE(run.train.flow_shift) << name;
  }
  EXPECT_EQ(load_run_config(MEGASLIDE_SOURCE_DIR "/configs/train/wan2.2-a14b-low.yaml").model.expert, RunConfig::Expert::kLow);
}

TEST(MachineConfig, EveryPresetLoadsAndReadsBack) {
  set_config_directories({MEGASLIDE_SOURCE_DIR "/configs"});
  ASSERT_EQ(preset_names("machines").size(), 6u);
  for (const std::string& name : preset_names("machines")) {
    const MachineConfig c = load_machine_config(name);
    EXPECT_EQ(c.name, name);
    EXPECT_GT(c.host_memory, 0);
    for (const double rate : {c.host_bandwidth, c.optimizer_bandwidth, c.disk_bandwidth, c.peak_flops, c.gemm_bf16, c.gemm_fp32, c.attention, c.vector_bandwidth,
                              c.pack_bandwidth, c.link_up, c.link_down, c.link_both})
      EXPECT_GT(rate, 0) << name;
    EXPECT_LE(c.gemm_bf16, c.peak_flops);
    const std::string yaml = to_yaml(c);
    EXPECT_EQ(to_yaml(parse_machine_config(yaml, "copy.yaml")), yaml);
  }
}

TEST(MachineConfig, Relations) {
  EXPECT_THROW(parse_machine_config("threads: 2\n", "m.yaml"), Error);
  EXPECT_THROW(parse_machine_config("host: {memory: 8GB}\nunified: false\n", "m.yaml"), Error);
  EXPECT_THROW(parse_machine_config("host: {memory: 8GB}\nlink: {up: 10GB/s, both: 5GB/s}\n", "m.yaml"), Error);
  EXPECT_NO_THROW(parse_machine_config("host: {memory: 8GB}\n", "m.yaml"));
}

}  // namespace
}  // namespace megaslide
