// manifest.json of a model directory.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "io/json.h"
#include "io/model_config_json.h"
#include "io/model_directory.h"

namespace megaslide {
namespace {
using nlohmann::json;

constexpr const char* kFormat = "megaslide-model";
constexpr int64_t kVersion = 1;

// Relative, without "..", empty parts or backslashes: nothing outside the directory can be meant.
bool plain_relative_path(const std::string& name) {
  if (name.empty() || name.size() > 1024 || name.find_first_of(std::string_view("\\\0", 2)) != std::string::npos) return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

// Keys sorted, no white space: independent of how the text is laid out.
std::string digest_of(json manifest) {
  manifest.erase("digest");
  return sha256_hex(std::string_view(manifest.dump()));
}

ManifestFile read_file_entry(const json& from, JsonFields& parent) {
  ManifestFile file;
  JsonFields f(from, "");
  f.read("name", file.name);
  f.read("bytes", file.bytes);
  f.read("sha256", file.sha256);
  if (f.problems().empty()) {
    if (!plain_relative_path(file.name)) f.problem(fmt::format("{} is not a plain relative name", quote_for_message(file.name)));
    if (file.bytes < 0) f.problem("bytes must not be negative");
    if (file.sha256.size() != 64 || file.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
      f.problem("sha256 must be 64 hexadecimal digits");
  }
  for (const std::string& p : f.problems()) parent.problem("files: " + p);
  return file;
}

ModelSource read_source(const json& from, JsonFields& parent) {
  ModelSource source;
  JsonFields f(from, "");
  f.read("layout", source.layout);
  f.read("path", source.path);
  f.read("prefix", source.prefix);
  f.read("config_json", source.config_json);
  if (f.find("seed")) {
    uint64_t seed = 0;
    f.read("seed", seed);
    source.seed = seed;
  }
  if (f.find("network")) f.read("network", source.network);
  if (f.find("parts")) f.read("parts", source.parts);
  for (const std::string& p : f.problems()) parent.problem("source: " + p);
  return source;
}

}  // namespace

std::string manifest_to_text(const ModelManifest& m) {
  nlohmann::ordered_json out;
  out["format"] = kFormat;
  out["version"] = kVersion;
  out["config"] = model_config_to_json(m.config);
  out["dtype"] = m.dtype;
  out["parameters"] = m.parameters;
  out["source"] = {{"layout", m.source.layout}, {"path", m.source.path}, {"prefix", m.source.prefix}, {"config_json", m.source.config_json}};
  if (m.source.seed) out["source"]["seed"] = *m.source.seed;
  if (!m.source.network.empty()) out["source"]["network"] = m.source.network;
  if (!m.source.parts.empty()) out["source"]["parts"] = m.source.parts;
  if (!m.state.empty()) out["state"] = nlohmann::ordered_json::parse(m.state);
  out["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& f : m.files) out["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"sha256", f.sha256}});
  // Through text, so that the digest is of what a reader sees.
  const auto text = [&] { return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"; };
  out["digest"] = digest_of(parse_json(text(), "manifest"));
  return text();
}

ModelManifest parse_manifest(const std::string& text, const std::string& source) {
  const json from = parse_json(text, source);
  JsonFields f(from, source);
  std::string format;
  int64_t version = 0;
  f.read("format", format);
  f.read("version", version);
  if (format != kFormat) throw Error(fmt::format("{}: not the manifest of a MegaSlide model", source), "make one with shard-weights");
  if (version != kVersion)
    throw Error(fmt::format("{}: format version {}, this program reads version {}", source, version, kVersion), "use the version of MegaSlide that wrote it");
  ModelManifest m;
  f.read("dtype", m.dtype);
  f.read("parameters", m.parameters);
  std::string digest;
  f.read("digest", digest);
  m.digest_ok = digest == digest_of(from);
  const json& config = f.object("config");
  m.source = read_source(f.object("source"), f);
  if (f.find("state")) m.state = f.object("state").dump();
  for (const json& entry : f.array("files")) m.files.push_back(read_file_entry(entry, f));
  for (size_t i = 1; i < m.files.size(); ++i)
    if (m.files[i - 1].name >= m.files[i].name) f.problem(fmt::format("files: {} is out of order or listed twice", quote_for_message(m.files[i].name)));
  f.finish();
  m.config = model_config_from_json(config, source + ": config");
  return m;
}

}  // namespace megaslide
