// The latent cache over several runs: only what changed is made again.
#include <cstring>
#include <filesystem>

#include "clips.h"
#include "io/safetensors.h"

namespace megaslide::cases {
namespace {

namespace fs = std::filesystem;

Encoded encode_at(Case& c, const std::string& name, const std::string& clips, const std::string& size) {
  Encoded e;
  e.cache = c.work(name);
  e.run = c.run({"encode-clips", clips, "-o", e.cache, "--model", c.model(), "--num-frames", "5", "--size", size, "--json"});
  c.expect_status(e.run, 0, "encode-clips");
  e.report = e.run.json();
  return e;
}

int64_t number(const Encoded& e, const char* key) { return e.report.is_object() && e.report.contains(key) ? e.report.at(key).get<int64_t>() : -1; }

std::string latent_of(const Encoded& e, const std::string& path) {
  const Json* clip = e.find(path);
  if (clip == nullptr || !clip->contains("key")) return {};
  const SafetensorsFile file = SafetensorsFile::open(e.cache + "/clips/" + clip->at("key").get<std::string>() + ".safetensors");
  const TensorView v = file.view("latent");
  return {reinterpret_cast<const char*>(v.data), static_cast<size_t>(v.bytes())};
}

// `bytes` with a box that readers skip, so that the file has this size.
std::string padded(std::string bytes, size_t size) {
  const auto pad = static_cast<uint32_t>(size - bytes.size());
  const char head[8] = {static_cast<char>(pad >> 24), static_cast<char>(pad >> 16), static_cast<char>(pad >> 8), static_cast<char>(pad), 'f', 'r', 'e', 'e'};
  return bytes.append(head, 8).append(pad - 8, '\0');
}

void changes(Case& c, const std::string& clips) {
  const size_t n = c.check().at("clips");
  const Encoded first = encode_at(c, "cache", clips, "64x64");
  c.expect(number(first, "encoded") == static_cast<int64_t>(n), "the first run encodes " + std::to_string(number(first, "encoded")));
  c.expect(number(encode_at(c, "cache", clips, "64x64"), "encoded") == 0, "a second run encodes again");

  write_text(clips + "/k6.txt", "another caption");
  const Encoded caption = encode_at(c, "cache", clips, "64x64");
  c.expect(number(caption, "encoded") == 0 && number(caption, "texts_encoded") == 1, "a new caption costs " + std::to_string(number(caption, "encoded")) + " latents");
  c.expect(latent_of(caption, "k6.mp4") == latent_of(first, "k6.mp4"), "the latent changed with the caption");

  const auto stamp = fs::last_write_time(clips + "/k0.mp4");
  const size_t size = fs::file_size(clips + "/k0.mp4");
  write_text(clips + "/k0.mp4", padded(read_text(clips + "/k1.mp4"), size));
  fs::last_write_time(clips + "/k0.mp4", stamp);
  const Encoded replaced = encode_at(c, "cache", clips, "64x64");
  c.expect(number(replaced, "encoded") == 1, "a replaced clip: " + std::to_string(number(replaced, "encoded")) + " encoded");
  c.expect(latent_of(replaced, "k0.mp4") == latent_of(first, "k1.mp4"), "the replaced clip keeps its old latent");

  fs::remove(clips + "/k5.mp4");
  fs::remove(clips + "/k5.txt");
  const Encoded fewer = encode_at(c, "cache", clips, "64x64");
  const Json index = Json::parse(read_text(fewer.cache + "/index.json"), nullptr, false);
  c.expect(number(fewer, "encoded") == 0 && index.at("clips").size() == n - 1, "the deleted clip stays in the dataset");

  c.expect(number(encode_at(c, "cache", clips, "32x32"), "encoded") == static_cast<int64_t>(n - 1), "a new size does not make all latents");
  c.expect(number(encode_at(c, "cache", clips, "64x64"), "encoded") == 0, "the old size was lost");
  c.saw("encoded: 7 first, 0 again, 0 latents and 1 text for a caption, 1 for a replaced clip of the same size and time, 0 for a deleted one, 6 for another size beside the old");
}

void killed(Case& c, const std::string& clips) {
  const std::string many = c.work("many");
  fs::create_directories(many);
  for (int i = 0; i < 60; ++i) {  // different contents, so that nothing is shared
    const std::string base = many + "/m" + std::to_string(i), from = clips + "/k" + std::to_string(i % 5);
    write_text(base + ".mp4", padded(read_text(from + ".mp4"), fs::file_size(from + ".mp4") + 16 + static_cast<size_t>(i)));
    write_text(base + ".txt", "clip " + std::to_string(i));
  }
  const std::string cache = c.work("killed");
  const auto files = [&] {
    int64_t n = 0;
    std::error_code ignored;
    for (fs::directory_iterator it(cache + "/clips", ignored), end; it != end; it.increment(ignored)) n += it->path().extension() == ".safetensors" ? 1 : 0;
    return n;
  };
  RunLimits limits;
  limits.kill_when = [&] { return files() > 0; };
  const RunResult r = c.run({"encode-clips", many, "-o", cache, "--model", c.model(), "--num-frames", "5", "--size", "256x256", "-q", "--threads", "1"}, limits);
  const int64_t before = files();
  const Json report = c.run({"encode-clips", many, "-o", cache, "--model", c.model(), "--num-frames", "5", "--size", "256x256", "--json"}).json();
  if (!c.expect(report.is_object(), "the run after a kill fails")) return;
  c.expect(report.at("kept") == 60 && report.at("encoded") == 60 - before, "after a kill with " + std::to_string(before) + " latents there: " + report.at("encoded").dump() + " encoded");
  c.expect(r.signal == 9 || before == 60, "the run was not killed");
  c.saw("killed with " + std::to_string(before) + " of 60 done, " + report.at("encoded").dump() + " encoded after");
}

void refused_by_finetune(Case& c, const std::string& clips) {
  const std::string other = c.work("other");
  const std::string yaml = "name: narrow\ndim: 64\nheads: 2\nffn_dim: 128\nlayers: 1\nattention: dense\ndsa: {groups: 2}\ntext_dim: 32\ntext_len: 16\ncodec: haar\ntext_encoder: hashed-ngram\n";
  write_text(c.work("narrow.yaml"), yaml);
  c.expect_status(c.run({"shard-weights", "--init", c.work("narrow.yaml"), "-o", other, "--seed", "1", "-q"}), 0, "shard-weights");
  encode_at(c, "cache", clips, "64x64");
  const auto run_yaml = [&](const std::string& model, const std::string& out) {
    return "model: {path: " + model + "}\ndata: {cache: " + c.work("cache") + "}\noutput: {output_dir: " + out + ", save_every_n_steps: 1}\n";
  };
  write_text(c.work("other.yaml"), run_yaml(other, c.work("run-other")));
  const RunResult r = c.run({"finetune", c.work("other.yaml"), "--steps", "1"});
  c.expect(r.status == 1 || r.status == 2, "a cache of another model is taken: exit " + std::to_string(r.status));
  c.expect(r.says("made for the text encoder") && r.says("narrow"), r.err);
  // A run goes on from its checkpoint only with the latents it began with.
  write_text(c.work("same.yaml"), run_yaml(c.model(), c.work("run-same")));
  c.expect_status(c.run({"finetune", c.work("same.yaml"), "--steps", "1", "-q"}), 0, "finetune");
  encode_at(c, "cache", clips, "32x32");
  const RunResult resized = c.run({"finetune", c.work("same.yaml"), "--steps", "2"});
  c.expect(resized.status == 2 && resized.says("data.cache"), "a run goes on with latents of another size: exit " + std::to_string(resized.status) + ": " + resized.err);
  c.saw("finetune: " + r.line("made for") + " / " + resized.line("data.cache"));
}

void stale_cache(Case& c) {
  const std::string clips = c.copy(c.file() + "/clips", "clips");
  changes(c, clips);
  killed(c, clips);
  refused_by_finetune(c, clips);
}

}  // namespace

void add_cache_cases(CaseTable& table) { table["stale-cache"] = stale_cache; }

}  // namespace megaslide::cases
