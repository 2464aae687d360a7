// Cases of kinds "prompts" and "sampling": sample-video with the tiny model.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "case.h"
#include "io/video.h"

namespace megaslide::cases {
namespace {

namespace fs = std::filesystem;

RunResult sample(Case& c, const std::string& out, std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"sample-video", c.trained(), "-o", out});
  return c.run(flags);
}

const std::vector<std::string> kSmall = {"--num-frames", "1", "--size", "32x32", "--steps", "1"};

std::vector<std::string> plus(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void prompt_file(Case& c) {
  const RunResult r = sample(c, c.work("out"), plus(kSmall, {"--prompts", c.file(), "--format", "png", "--seed", "3"}));
  c.expect_status(r, 0, "sample-video");
  const Json manifest = Json::parse(read_text(c.work("out/manifest.json")), nullptr, false);
  if (!c.expect(manifest.is_array(), "no manifest")) return;
  const Json& want = c.check().at("prompts");
  c.expect(manifest.size() == c.check().at("files"), std::to_string(manifest.size()) + " entries");
  std::set<std::string> files;
  for (size_t i = 0; i < manifest.size() && i < want.size(); ++i) {
    const Json& m = manifest[i];
    c.expect(m.at("prompt") == want[i], "prompt " + std::to_string(i) + ": " + m.at("prompt").dump());
    c.expect(m.contains("seed"), "no seed");
    const fs::path p = (fs::path(c.work("out")) / m.at("path").get<std::string>()).lexically_normal();
    c.expect(fs::exists(p) && p.parent_path() == fs::path(c.work("out")), p.string() + " is not inside the folder");
    c.expect(p.filename().string().size() <= c.check().at("max_name_bytes").get<size_t>(), "a name that is too long");
    files.insert(p.string());
  }
  c.expect(files.size() == c.check().at("files"), "names collide: " + std::to_string(files.size()) + " different");
  size_t entries = 0;
  for (const auto& e : fs::directory_iterator(c.work("out"))) entries += e.is_directory() ? 1 : 0;
  c.expect(entries == files.size(), std::to_string(entries) + " videos in the folder");
  // "a kite" 400 times: 800 words of the built-in encoder, which reads 32.
  c.expect(r.says("800") && r.says("32"), "no warning with both counts: " + r.err);
  c.saw("12 prompts in order, 12 different names in the folder, a manifest; " + r.line("800"));
}

// A refusal with the option and its value, or a video of `frames` frames with a warning.
void refused_or_rounded(Case& c, const std::string& what, const RunResult& r, const std::string& option, const std::string& value, const std::string& video, int64_t frames) {
  if (r.status == 0) {
    c.expect(frames > 0 && !r.err.empty(), what + " is taken without a warning");
    if (frames > 0) c.expect(r.json().at("videos")[0].at("frames") == frames, what + " gives other frames");
    return;
  }
  c.expect_status(r, 2, what);
  c.expect(r.says(option) && r.says(value), what + ": the refusal names no option and value: " + r.err);
  c.expect(!fs::exists(video), what + ": a file was left");
}

void frame_counts(Case& c, const Json& values) {
  for (const auto& [value, want] : values.items()) {
    const std::string out = c.work("frames" + value + ".mp4");
    const RunResult r = sample(c, out, {"--prompt", "a kite", "--size", "32x32", "--steps", "1", "--num-frames", value, "--json"});
    if (want.is_number()) {
      c.expect_status(r, 0, "--num-frames " + value);
      if (r.status != 0) continue;
      const auto reader = open_video(out);
      Picture p;
      double time = 0;
      int64_t n = 0;
      while (reader->next(p, time)) ++n;
      c.expect(n == want.get<int64_t>(), "--num-frames " + value + " writes " + std::to_string(n));
    } else {
      const std::string text = want;
      const int64_t n = text.find("or ") == std::string::npos ? 0 : std::stoll(text.substr(text.find("or ") + 3));
      refused_or_rounded(c, "--num-frames " + value, r, "num-frames", value, out, n);
    }
  }
}

// Sizes that are refused are those of a model with Wan's autoencoder, whose token is 16×16 pixels; the tiny model's is 8×8.
void frame_sizes(Case& c, const Json& values) {
  write_text(c.work("wan.yaml"), "name: narrow\ndim: 64\nheads: 2\nffn_dim: 128\nlayers: 1\nattention: dense\ndsa: {groups: 2}\ncodec: wan2.1-vae\ntext_encoder: umt5\n");
  c.expect_status(c.run({"shard-weights", "--init", "wan.yaml", "-o", "wan", "--seed", "1", "-q"}), 0, "shard-weights");
  for (const auto& [value, want] : values.items()) {
    const std::string out = c.work("size" + value + ".mp4");
    const std::vector<std::string> flags = {"--prompt", "a kite", "--size", value, "--steps", "1", "--num-frames", "1"};
    if (want == "ok") {
      const RunResult r = sample(c, out, flags);
      c.expect_status(r, 0, "--size " + value);
      if (r.status != 0) continue;
      const VideoInfo info = open_video(out)->info();
      c.expect(std::to_string(info.width) + "x" + std::to_string(info.height) == value, "--size " + value + " writes " + std::to_string(info.width) + "x" + std::to_string(info.height));
    } else {
      const RunResult r = c.run(plus({"sample-video", "wan", "-o", out}, flags));
      c.expect_status(r, 2, "--size " + value);
      c.expect(r.says("--size") && !fs::exists(out), "--size " + value + ": " + r.err);
      if (want.get<std::string>().find("816") != std::string::npos) c.expect(r.says("816") && r.says("832"), "the nearest sizes are not said: " + r.err);
    }
  }
}

void numbers(Case& c, const Json& steps, const Json& seeds) {
  for (const auto& [value, want] : steps.items()) {
    const std::string out = c.work("steps" + value + ".mp4");
    const RunResult r = sample(c, out, {"--prompt", "a kite", "--size", "32x32", "--num-frames", "1", "--steps", value});
    if (want.get<std::string>().substr(0, 2) == "ok") c.expect_status(r, 0, "--steps " + value);
    else refused_or_rounded(c, "--steps " + value, r, "--steps", value, out, 0);
  }
  std::map<std::string, std::string> videos;
  for (const auto& [value, want] : seeds.items()) {
    const std::string out = c.work("seed" + value + ".safetensors");
    const RunResult r = sample(c, out, plus(kSmall, {"--prompt", "a kite", "--seed", value}));
    if (want.get<std::string>().substr(0, 2) == "ok") {
      c.expect_status(r, 0, "--seed " + value);
      videos[value] = read_text(out);
    } else {
      refused_or_rounded(c, "--seed " + value, r, "--seed", value, out, 0);
    }
  }
  c.expect(videos["0"] != videos["4294967296"] && !videos["0"].empty(), "seed 2^32 gives the video of seed 0");
}

void guidance(Case& c) {
  const auto run = [&](const std::string& name, const std::vector<std::string>& flags) { return sample(c, c.work(name), plus(kSmall, plus({"--prompt", "a kite", "--json"}, flags))); };
  const RunResult unused = run("g1n.safetensors", {"--guidance-scale", "1", "--negative-prompt", "dull"});
  c.expect_status(unused, 0, "--guidance-scale 1");
  c.expect(unused.says("negative prompt is not used"), "an unused negative prompt is not reported: " + unused.err);
  const RunResult plain = run("g1.safetensors", {"--guidance-scale", "1.0"});
  c.expect(plain.status == 0 && plain.err.empty(), "guidance 1 alone warns: " + plain.err);
  const RunResult two = run("g5.safetensors", {"--guidance-scale", "5"});
  c.expect_status(two, 0, "--guidance-scale 5");
  c.expect(read_text(c.work("g1.safetensors")) != read_text(c.work("g5.safetensors")), "guidance 5 changes nothing");
  const RunResult zero = run("g0.safetensors", {"--guidance-scale", "0"});
  c.expect(zero.status == 0 || (zero.status == 2 && zero.says("--guidance-scale")), "--guidance-scale 0: " + zero.err);
  const RunResult nan = run("gn.safetensors", {"--guidance-scale", "nan"});
  c.expect(nan.status == 2 && nan.says("--guidance-scale"), "--guidance-scale nan: " + nan.err);
}

void sampling_arguments(Case& c) {
  const Json values = Json::parse(read_text(c.file()));
  frame_counts(c, values.at("frames"));
  frame_sizes(c, values.at("size"));
  numbers(c, values.at("steps"), values.at("seed"));
  guidance(c);
  // Before the model is loaded: a wrong value is found although there is no model.
  const RunResult r = c.run({"sample-video", c.work("no-such-model"), "--prompt", "a", "-o", c.work("x.mp4"), "--steps", "0"});
  c.expect(r.status == 2 && r.says("--steps"), "a wrong value is found after the model: " + r.err);
  size_t n = 0;
  for (const auto& [key, list] : values.items()) n += list.size();
  c.saw(std::to_string(n) + " values: frames and sizes as promised, the others refused with option, value and range");
}

std::string frames_of(const std::string& folder) {
  std::string all;
  std::set<std::string> names;
  for (const auto& e : fs::directory_iterator(folder)) names.insert(e.path().string());
  for (const std::string& n : names) all += read_text(n);
  return all;
}

void seed_batch(Case& c) {
  const std::vector<std::string> common = {"--size", "32x32", "--num-frames", "5", "--steps", "2", "--seed", "7", "--format", "png"};
  const RunResult all = sample(c, c.work("all"), plus(common, {"--prompts", c.file()}));
  c.expect_status(all, 0, "all prompts");
  const Json manifest = Json::parse(read_text(c.work("all/manifest.json")), nullptr, false);
  if (!c.expect(manifest.is_array() && manifest.size() > 2, "no manifest")) return;
  const std::string prompt = manifest[2].at("prompt");
  c.expect(manifest[2].at("seed") == 7, "seed " + manifest[2].at("seed").dump());
  const std::string want = frames_of(c.work("all/") + manifest[2].at("path").get<std::string>());
  for (const std::string threads : {"1", "4"}) {
    c.expect_status(sample(c, c.work("one" + threads), plus(common, {"--prompt", prompt, "--threads", threads})), 0, "one prompt");
    c.expect(!want.empty() && frames_of(c.work("one" + threads)) == want, "the video differs with " + threads + " threads and alone");
    c.expect_status(sample(c, c.work("all" + threads), plus(common, {"--prompts", c.file(), "--threads", threads})), 0, "all prompts");
    c.expect(frames_of(c.work("all" + threads + "/") + manifest[2].at("path").get<std::string>()) == want, "the video differs with " + threads + " threads in the list");
  }
  c.saw("\"" + prompt + "\", seed 7: equal bits alone, third of twelve, with 1 and 4 threads");
}

}  // namespace

void add_sampling_cases(CaseTable& table) {
  table["prompt-file"] = prompt_file;
  table["sampling-arguments"] = sampling_arguments;
  table["seed-batch"] = seed_batch;
}

}  // namespace megaslide::cases
