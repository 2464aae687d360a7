// What a model directory holds, and the hash of its state.
#include <algorithm>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "io/json.h"
#include "io/model_config_json.h"
#include "io/parameter_reader.h"
#include "io/shard.h"
#include "io/state_hash.h"

namespace megaslide {
namespace {
using nlohmann::json;

constexpr int64_t kPiece = 1 << 18;  // elements at a time

void hash_parameter(StateHasher& hasher, const ParameterReader& reader, const std::string& name) {
  const int64_t n = reader.elements();
  std::vector<uint16_t> half(static_cast<size_t>(std::min(kPiece, n)));
  std::vector<float> full(half.size());
  const auto pieces = [&](auto&& use) {
    for (int64_t at = 0; at < n; at += kPiece) use(at, std::min(kPiece, n - at));
  };
  const auto floats = [&](int64_t count) { return std::span<const float>(full.data(), static_cast<size_t>(count)); };
  hasher.begin_tensor(name, n);
  pieces([&](int64_t at, int64_t count) {
    reader.weight_bf16(half.data(), at, count);
    hasher.weights({half.data(), static_cast<size_t>(count)});
  });
  pieces([&](int64_t at, int64_t count) {
    reader.master(full.data(), at, count);
    hasher.masters(floats(count));
  });
  if (!reader.has_moments()) return;
  pieces([&](int64_t at, int64_t count) {
    reader.first_moment(full.data(), at, count);
    hasher.first_moments(floats(count));
  });
  pieces([&](int64_t at, int64_t count) {
    reader.second_moment(full.data(), at, count);
    hasher.second_moments(floats(count));
  });
}

std::optional<uint64_t> state_step(const ModelManifest& manifest) {
  if (manifest.state.empty()) return std::nullopt;
  const json state = parse_json(manifest.state, "state");
  const auto it = state.find("step");
  if (it == state.end() || !it->is_number_unsigned()) return std::nullopt;
  return it->get<uint64_t>();
}

std::string state_rng(const ModelManifest& manifest) {
  const json state = parse_json(manifest.state, "state");
  const auto it = state.find("rng");
  if (it == state.end()) return {};
  return it->is_string() ? it->get<std::string>() : it->dump();
}

}  // namespace

std::string hash_state(const ModelDirectory& model, StopToken stop) {
  StateHasher hasher;
  Progress progress("hash", static_cast<double>(model.layers() + 2), "files");
  for (int64_t part = -1; part <= model.layers(); ++part) {
    const SafetensorsFile file = model.part(part);
    for (const WanTensor& t : wan_tensors(model.config(), part)) {
      stop.throw_if_requested();
      const ParameterReader reader(file, t.name);
      hash_parameter(hasher, reader, t.name);
      reader.drop_pages();
    }
    progress.add(1, file.path());
  }
  if (model.is_checkpoint()) {
    const auto step = state_step(model.manifest());
    if (!step) throw Error(fmt::format("{}/{}: its state has no step", model.path(), kManifestName), "the checkpoint is damaged");
    hasher.add_step(*step, state_rng(model.manifest()));
  }
  return hasher.hex();
}

namespace {

void add_network(ModelSummary& s, const ModelDirectory& model, const std::string& name, const std::string& prefix) {
  const ModelManifest& m = model.manifest();
  int64_t bytes = 0;
  for (const ManifestFile& f : m.files) bytes += f.bytes;
  s.files += m.files.size();
  s.networks.push_back({name, m.parameters, bytes, m.dtype});
  s.parameters += m.parameters;
  s.bytes += bytes;
  s.dtype = s.dtype.empty() || s.dtype == m.dtype ? m.dtype : "mixed";
  for (int64_t part = -1; part <= model.layers(); ++part) {
    const SafetensorsFile file = model.part(part);
    for (const WanTensor& t : wan_tensors(m.config, part))
      s.tensors.push_back({prefix + t.name, std::string(dtype_name(file.find(t.name)->dtype)), t.shape});
  }
}

}  // namespace

ModelSummary describe(const ModelDirectory& model) {
  const ModelManifest& m = model.manifest();
  ModelSummary s;
  s.architecture = "wan";
  s.name = m.config.name;
  s.layers = m.config.layers;
  s.attention = attention_kind_name(m.config.attention.kind);
  s.step = state_step(m);
  add_network(s, model, "transformer", "");
  if (model.has_second()) add_network(s, model.second(), kSecondNetworkFolder, std::string(kSecondNetworkFolder) + ".");
  for (const char* part : {"vae", "text_encoder", "tokenizer"})
    if (std::any_of(m.files.begin(), m.files.end(), [&](const ManifestFile& f) { return f.name.starts_with(std::string(part) + "/"); })) s.parts.emplace_back(part);
  return s;
}

std::string summary_to_json(const ModelSummary& s, const ModelManifest& manifest) {
  nlohmann::ordered_json j;
  j["architecture"] = s.architecture;
  j["name"] = s.name;
  j["parameters"] = s.parameters;
  j["layers"] = s.layers;
  j["dtype"] = s.dtype;
  j["bytes"] = s.bytes;
  j["attention"] = s.attention;
  if (s.step) j["step"] = *s.step;
  j["config"] = model_config_to_json(manifest.config);
  j["networks"] = nlohmann::ordered_json::array();
  for (const auto& n : s.networks) j["networks"].push_back({{"name", n.name}, {"parameters", n.parameters}, {"dtype", n.dtype}, {"bytes", n.bytes}});
  j["parts"] = s.parts;
  j["source"] = {{"layout", manifest.source.layout}, {"path", manifest.source.path}};
  j["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& f : manifest.files) j["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"sha256", f.sha256}});
  j["tensors"] = nlohmann::ordered_json::array();
  for (const TensorSummary& t : s.tensors) j["tensors"].push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}});
  return j.dump() + "\n";
}

std::string summary_to_text(const ModelSummary& s, const ModelManifest& manifest) {
  const ModelConfig& c = manifest.config;
  std::string text;
  const auto line = [&](const char* key, const std::string& value) { text += fmt::format("{:<13} {}\n", key, value); };
  line("name", s.name);
  line("architecture", fmt::format("{}: {} layers, width {}, {} heads of {}, FFN {}", s.architecture, c.layers, c.dim, c.heads, c.head_dim(), c.ffn_dim));
  line("parameters", std::to_string(s.parameters));
  if (s.networks.size() > 1)
    for (const auto& n : s.networks) line(("  " + n.name).c_str(), fmt::format("{} {}, {}", n.parameters, n.dtype, format_bytes(n.bytes)));
  line("dtype", s.dtype);
  line("attention", s.attention);
  line("bytes", fmt::format("{} ({}) in {} files", s.bytes, format_bytes(s.bytes), s.files));
  if (!s.parts.empty()) line("parts", fmt::format("{}", fmt::join(s.parts, ", ")));
  line("source", manifest.source.layout + (manifest.source.path.empty() ? "" : ": " + manifest.source.path));
  if (s.step) line("step", std::to_string(*s.step));
  return text;
}

Verdict describe_model(const ModelDirectory& model) {
  const ModelSummary s = describe(model);
  return {summary_to_text(s, model.manifest()), summary_to_json(s, model.manifest())};
}

Verdict verify_model(const std::string& directory, ThreadPool& pool, StopToken stop) {
  std::vector<ModelDirectory::Difference> differences;
  size_t files = 0;
  try {
    const ModelDirectory model = ModelDirectory::open_unchecked(directory);
    files = model.manifest().files.size() + (model.has_second() ? ModelDirectory::open_unchecked(model.path() + "/" + kSecondNetworkFolder).manifest().files.size() : 0);
    differences = model.verify(pool, stop);
  } catch (const Error& e) {
    if (!ModelDirectory::is_one(directory)) throw;
    differences.push_back({kManifestName, e.message()});
  }
  Verdict v;
  v.good = differences.empty();
  nlohmann::ordered_json j = {{"ok", v.good}, {"files", files}, {"differences", nlohmann::ordered_json::array()}};
  for (const auto& d : differences) {
    v.text += fmt::format("{}: {}\n", d.name, d.what);
    j["differences"].push_back({{"name", d.name}, {"what", d.what}});
  }
  v.json = j.dump() + "\n";
  return v;
}

Verdict list_files(const std::vector<std::string>& paths) {
  Verdict v;
  for (const std::string& p : paths) v.text += p + "\n";
  v.json = json{{"files", paths}}.dump() + "\n";
  return v;
}

Verdict hash_model(const ModelDirectory& model, StopToken stop) {
  std::string hash = hash_state(model, stop);
  if (model.has_second()) hash = sha256_hex(std::string_view(hash + "\n" + hash_state(model.second(), stop) + "\n"));
  return {hash + "\n", json{{"sha256", hash}}.dump() + "\n"};
}

}  // namespace megaslide
