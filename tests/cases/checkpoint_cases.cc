// Cases of kind "checkpoint": foreign weights in, and out again.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/sha256.h"
#include "case.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

namespace megaslide::cases {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kSmallMemory = 0;  // a sanitizer's shadow memory is terabytes of address space
#else
constexpr int64_t kSmallMemory = int64_t{256} << 20;
#endif

RunResult import_model(Case& c, const std::string& from, const std::string& name, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> command = {"shard-weights", from, "-o", c.work(name)};
  command.insert(command.end(), flags.begin(), flags.end());
  return c.run(command);
}

std::string without_prefix(const std::string& name) {
  const std::string prefix = "model.diffusion_model.";
  return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : name;
}

// The rule of cases.json: SHA-256 over name, NUL, dtype, NUL, bytes, names ascending.
std::string state_hash(const std::string& path, const std::string& but = {}) {
  const SafetensorsSource source = SafetensorsSource::open(path);
  std::map<std::string, std::string> names;  // without prefix -> as stored
  for (const auto& [name, entry] : source.tensors())
    if (name != but) names[without_prefix(name)] = name;
  Sha256 hash;
  for (const auto& [name, stored] : names) {
    const TensorView v = source.view(stored);
    hash.update(name + std::string(1, 0) + std::string(dtype_name(v.dtype)) + std::string(1, 0));
    hash.update({v.data, static_cast<size_t>(v.bytes())});
  }
  return hash.hex();
}

std::string program_hash(Case& c, const std::string& model) { return c.run({"shard-weights", "--hash", c.work(model)}).out; }

void comfy_prefix(Case& c) {
  c.expect_status(import_model(c, c.file(), "model"), 0, "import");
  const Json info = c.run({"shard-weights", "--info", c.work("model"), "--json"}).json();
  if (!c.expect(info.is_object(), "no --info")) return;
  const Json& config = info.at("config");
  c.expect(config.at("dim") == c.check().at("dim") && config.at("heads") == c.check().at("heads") && config.at("layers") == c.check().at("layers") && config.at("ffn_dim") == c.check().at("ffn"), config.dump());
  c.expect(info.at("tensors").size() == c.check().at("tensors"), info.at("tensors").empty() ? "no tensors" : std::to_string(info.at("tensors").size()) + " tensors");
  c.expect_status(c.run({"shard-weights", "--export", "wan", c.work("model"), "-o", c.work("wan.safetensors")}), 0, "export wan");
  c.expect_status(c.run({"shard-weights", "--export", "diffusers", c.work("model"), "-o", c.work("diffusers")}), 0, "export diffusers");
  c.expect(c.check().at("state_hash") == state_hash(c.work("wan.safetensors")), "exported tensors differ");
  c.expect(c.check().at("state_hash") == state_hash(c.file()), "the rule of the state hash");
  c.expect_status(import_model(c, c.work("wan.safetensors"), "again-wan"), 0, "import of the export");
  const std::string transformer = fs::exists(c.work("diffusers/transformer")) ? c.work("diffusers/transformer") : c.work("diffusers");
  c.expect_status(import_model(c, transformer, "again-diffusers"), 0, "import of the export");
  const std::string hash = program_hash(c, "model");
  c.expect(!hash.empty() && hash == program_hash(c, "again-wan") && hash == program_hash(c, "again-diffusers"), "state hashes differ after export and import");
  c.saw("42 tensors, dim 128, 1 head, 1 layer; exports in both layouts come back with the same state hash, tensors bit for bit");
}

void fp8_scaled(Case& c) {
  const RunResult refused = import_model(c, c.file(), "model");
  if (refused.status != 0) {
    c.expect(refused.status == 1 || refused.status == 2, "exit " + std::to_string(refused.status));
    c.expect(refused.says("fp8 weights with scales") && refused.says("--dtype"), refused.err);
    c.expect(!fs::exists(c.work("model")), "something was written");
    c.saw("refused: " + refused.line("fp8 weights"));
  }
  const RunResult r = refused.status != 0 ? import_model(c, c.file(), "model", {"--dtype", "bf16"}) : refused;
  c.expect_status(r, 0, "import with de-quantising allowed");
  c.expect(r.says("quantised") || r.says("FP8") || r.says("fp8"), "no warning: " + r.err);
  c.expect_status(c.run({"shard-weights", "--export", "wan", c.work("model"), "-o", c.work("wan.safetensors")}), 0, "export");
  const SafetensorsFile file = SafetensorsFile::open(c.work("wan.safetensors"));
  for (const auto& [name, want] : c.check().at("values").items()) {
    const HostTensor t = read_f32(file, name);
    float most = 0;
    for (int64_t i = 0; i < t.elements(); ++i) most = std::max(most, std::abs(t.f32()[i]));
    const auto near = [](float a, double b) { return std::abs(a - b) <= std::abs(b) / 256 + 1e-12; };  // half a unit of bf16's last bit
    bool ok = near(most, want.at("absmax"));
    for (size_t i = 0; i < 4; ++i) ok = ok && near(t.f32()[i], want.at("first4")[i]);
    c.expect(ok, name + " is not scale · fp8");
  }
  for (const TensorInfo& t : file.tensors()) c.expect(t.name.find("scale") == std::string::npos, t.name + " is taken for a weight");
  c.saw("allowed: " + r.line("quantised"));
}

void lora_only(Case& c) {
  const RunResult r = import_model(c, c.file(), "model");
  c.expect(r.status == 1 || r.status == 2, "exit " + std::to_string(r.status));
  c.expect_says(r, "LoRA");
  c.expect(r.says("rank " + c.check().at("rank").dump()), "the rank is not said: " + r.err);
  c.expect(r.says(c.check().at("modules").dump() + " modules"), "the number of modules is not said: " + r.err);
  c.expect(r.err.size() < 1000, "a list of missing tensors");
  c.expect(!fs::exists(c.work("model")), "something was written");
  c.saw(r.line("LoRA"));
}

void diffusers_mixed(Case& c) {
  const RunResult r = import_model(c, c.file(), "model");
  c.expect_status(r, 0, "import");
  const std::string extra = c.check().at("extra")[0];
  c.expect_says(r, extra);
  const std::string hash = program_hash(c, "model");
  c.expect_status(import_model(c, c.file() + "/transformer", "from-folder"), 0, "import of transformer/");
  c.expect_status(import_model(c, c.file() + "/transformer/diffusion_pytorch_model.safetensors.index.json", "from-index"), 0, "import of the index");
  c.expect(!hash.empty() && hash == program_hash(c, "from-folder") && hash == program_hash(c, "from-index"), "the three ways give different states");
  const Json info = c.run({"shard-weights", "--info", c.work("model"), "--json"}).json();
  std::map<std::string, int64_t> dtypes;
  for (const Json& t : info.at("tensors")) ++dtypes[t.at("dtype")];
  for (const auto& [name, n] : c.check().at("dtypes").items()) {
    const int64_t ignored = name == "F32" ? 1 : 0;
    c.expect(dtypes[name] == n.get<int64_t>() || dtypes[name] == n.get<int64_t>() - ignored, name + ": " + std::to_string(dtypes[name]));
  }
  c.expect(info.at("config").at("heads") == c.check().at("heads") && info.at("config").at("dim") == c.check().at("dim"), "config");
  c.expect_status(c.run({"shard-weights", "--export", "diffusers", c.work("model"), "-o", c.work("out")}), 0, "export");
  const std::string out = fs::exists(c.work("out/transformer")) ? c.work("out/transformer") : c.work("out");
  c.expect(c.check().at("state_hash_diffusers_names") == state_hash(out, extra), "exported tensors differ");
  c.expect_status(c.run({"shard-weights", "--export", "wan", c.work("model"), "-o", c.work("wan.safetensors")}), 0, "export wan");
  c.run({"cp", c.file() + "/transformer/config.json", c.work("config.json")});
  c.expect_status(import_model(c, c.work("wan.safetensors"), "from-wan"), 0, "import of the original layout");
  c.expect(hash == program_hash(c, "from-wan"), "the original layout of the same weights has another state hash");
  c.saw("dtypes tensor by tensor; " + extra + " ignored with a notice; folder, transformer/, index and original layout have one state hash; exported bytes equal");
}

void missing_and_misshapen(Case& c) {
  const RunResult r = import_model(c, c.file(), "model");
  c.expect_status(r, 1, "import");
  for (const char* list : {"missing", "wrong_shape"})
    for (const Json& name : c.check().at(list)) c.expect_says(r, name);
  c.expect_says(r, "36");
  c.expect(!fs::exists(c.work("model")), "something was written");
  c.saw("refused with all four");
}

void hostile_headers(Case& c) {
  const std::map<std::string, std::vector<std::string>> reasons = {
      {"truncated.safetensors", {"5 bytes", "holds 27"}}, {"header-too-long.safetensors", {"1152921504606846976", "2^60"}}, {"seven-bytes.safetensors", {"too short"}},
      {"not-json.safetensors", {"JSON"}}, {"web-page.safetensors", {"HTML"}}, {"shape-mismatch.safetensors", {"20 bytes", "5 x 4"}},
      {"shape-overflow.safetensors", {"overflow", "too large"}}, {"negative-offset.safetensors", {"-16", "negative"}}};
  double slowest = 0;
  for (const Json& name : c.check().at("files")) {
    const std::string file = name;
    const RunResult r = c.run({"shard-weights", c.file() + "/" + file, "-o", c.work("model")}, {.seconds = 20, .address_space = kSmallMemory});
    c.expect_status(r, 1, file);
    c.expect_says(r, file);
    const auto& any = reasons.at(file);
    c.expect(std::any_of(any.begin(), any.end(), [&](const std::string& t) { return r.says(t); }), file + ": no reason of its own: " + r.err);
    slowest = std::max(slowest, r.seconds);
  }
  c.expect(!fs::exists(c.work("model")), "something was written");
  c.expect(slowest < 1 || kSmallMemory == 0, "one took " + std::to_string(slowest) + " s");
  char text[80];
  std::snprintf(text, sizeof text, "eight refused, each for its reason, within 256 MiB and %.2f s", slowest);
  c.saw(text);
}

// A batch for data.replay that the model of the case reads.
void write_replay(const std::string& path) {
  std::vector<float> x(16 * 1 * 4 * 4), text(8 * 32), sigma = {0.5f};
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) / 7 - 0.5f;
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<float>(i % 5) / 5 - 0.4f;
  const auto view = [](const std::vector<float>& v, Shape s) { return TensorView{DType::kF32, std::move(s), reinterpret_cast<const std::byte*>(v.data())}; };
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (int step = 0; step < 31; ++step) {
    const std::string at = "step" + std::to_string(step) + ".micro0.";
    tensors.push_back({at + "x0", view(x, {1, 16, 1, 4, 4})});
    tensors.push_back({at + "noise", view(x, {1, 16, 1, 4, 4})});
    tensors.push_back({at + "sigma", view(sigma, {1})});
    tensors.push_back({at + "text", view(text, {1, 8, 32})});
  }
  write_safetensors(path, tensors);
}

void nan_weight(Case& c) {
  const RunResult r = import_model(c, c.file(), "model");
  c.expect_says(r, c.check().at("tensor"));
  c.expect(r.says("1 NaN") && r.says("1 infinit"), "the counts are not said: " + r.err);
  if (r.status != 0) {
    c.expect(r.status == 1 && !fs::exists(c.work("model")), "exit " + std::to_string(r.status));
    c.saw("import refused: " + r.err.substr(0, r.err.find('\n')));
    return;
  }
  c.saw("import: " + r.line("1 NaN"));
  write_replay(c.work("batches.safetensors"));
  write_text(c.work("run.yaml"), "model: {path: model}\ndata: {replay: batches.safetensors}\ntrain: {max_train_steps: 30}\noutput: {output_dir: run, save_every_n_steps: 1}\n");
  const std::string before = program_hash(c, "model");
  const RunResult t = c.run({"finetune", "run.yaml"});
  c.expect_status(t, 1, "finetune");
  c.expect(t.says("finite") || t.says("NaN"), t.err);
  c.expect(before == program_hash(c, "model"), "the model changed");
  size_t saved = 0;
  if (fs::exists(c.work("run/checkpoints")))
    for (const auto& e : fs::directory_iterator(c.work("run/checkpoints"))) saved += e.is_directory() ? 1 : 0;
  c.expect(saved == 0, "a state of such weights was saved");
  c.saw("finetune: " + t.line("finite"));
  const RunResult s = c.run({"sample-video", "model", "--prompt", "a kite", "--num-frames", "1", "--size", "32x32", "--steps", "1", "-o", "x.mp4"});
  c.expect(s.status != 0, "sample-video gives a video with exit 0");
}

}  // namespace

void add_checkpoint_cases(CaseTable& table) {
  table["comfy-prefix"] = comfy_prefix;
  table["fp8-scaled"] = fp8_scaled;
  table["lora-only"] = lora_only;
  table["diffusers-mixed"] = diffusers_mixed;
  table["missing-and-misshapen"] = missing_and_misshapen;
  table["hostile-headers"] = hostile_headers;
  table["nan-weight"] = nan_weight;
}

}  // namespace megaslide::cases
