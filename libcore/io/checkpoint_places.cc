#include "io/checkpoint_places.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/model_directory.h"

namespace megaslide {
namespace fs = std::filesystem;
namespace {

bool is_folder(const std::string& path) {
  std::error_code ec;
  return fs::is_directory(path, ec);
}
bool is_file(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

bool has_weights_name(const std::string& name) {
  for (const char* e : {".safetensors", ".pth", ".pt", ".bin", ".ckpt"})
    if (name.ends_with(e)) return true;
  return false;
}

// Files of weights directly in `folder` whose lower-case name holds one of `parts`; safetensors before archives.
std::vector<std::string> find_named(const std::string& folder, const std::vector<std::string>& parts, const std::string& except) {
  std::vector<std::string> out;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(folder, ec)) {
    std::string name = e.path().filename().string();
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (!has_weights_name(name) || !is_file(e.path().string()) || (fs::exists(except, ec) && fs::equivalent(e.path(), except, ec))) continue;
    if (std::any_of(parts.begin(), parts.end(), [&](const std::string& p) { return name.find(p) != std::string::npos; })) out.push_back(e.path().string());
  }
  std::sort(out.begin(), out.end(), [](const std::string& a, const std::string& b) {
    const bool x = a.ends_with(".safetensors"), y = b.ends_with(".safetensors");
    return x != y ? x : a < b;
  });
  return out;
}

// The networks of `source`, and the folder where its parts are.
std::string find_networks(const std::string& source, const std::string& given, CheckpointPlaces& places) {
  places.weights = source;
  if (!is_folder(source)) {
    const std::string folder = parent_directory(fs::absolute(source).string()), above = parent_directory(folder);
    return is_file(above + "/model_index.json") ? above : folder;
  }
  if (is_folder(source + "/transformer")) {
    places.weights = source + "/transformer";
    if (is_folder(source + "/transformer_2")) places.weights_2 = source + "/transformer_2";
    return source;
  }
  const std::string high = source + "/high_noise_model", low = source + "/low_noise_model";
  if (is_folder(high) || is_folder(low)) {
    for (const std::string& f : {high, low})
      if (!is_folder(f))
        throw Error(fmt::format("{}: one of the two networks of Wan 2.2 A14B is missing: {}", given, fs::path(f).filename().string()),
                    fmt::format("fetch it too, or import the other alone: shard-weights {} -o DIR", f == high ? low : high));
    places.weights = high;
    places.weights_2 = low;
    return source;
  }
  const std::string parent = parent_directory(fs::absolute(source).string());
  const std::string name = fs::path(source).filename().string();
  return is_file(parent + "/model_index.json") || name == "high_noise_model" || name == "low_noise_model" ? parent : source;
}

void find_parts(const std::string& folder, CheckpointPlaces& places) {
  if (is_folder(folder + "/vae")) {
    places.vae = {folder + "/vae"};
    places.vae_certain = true;
  } else {
    places.vae = find_named(folder, {"vae"}, places.weights);
  }
  if (is_folder(folder + "/text_encoder")) {
    places.text_encoder = {folder + "/text_encoder"};
    places.text_encoder_certain = true;
  } else {
    places.text_encoder = find_named(folder, {"umt5", "t5_"}, places.weights);
  }
  for (const char* name : {"/tokenizer", "/google/umt5-xxl"})
    if (places.tokenizer.empty() && is_folder(folder + name)) places.tokenizer = folder + name;
  if (is_file(folder + "/scheduler/scheduler_config.json")) places.scheduler = folder + "/scheduler/scheduler_config.json";
  if (is_file(folder + "/model_index.json")) places.model_index = folder + "/model_index.json";
}

void check_flag(const char* flag, const std::string& path) {
  std::error_code ec;
  if (!fs::exists(path, ec)) throw Error(fmt::format("{} {}: no such file or folder", flag, path), "check the name");
}

void apply_flags(const PartFlags& flags, CheckpointPlaces& places) {
  if (!flags.vae.empty()) {
    check_flag("--vae", flags.vae);
    places.vae = {flags.vae};
    places.vae_certain = true;
  }
  if (!flags.text_encoder.empty()) {
    check_flag("--text-encoder", flags.text_encoder);
    places.text_encoder = {flags.text_encoder};
    places.text_encoder_certain = true;
  }
  if (flags.tokenizer.empty()) return;
  check_flag("--tokenizer", flags.tokenizer);
  places.tokenizer = is_folder(flags.tokenizer) ? flags.tokenizer : parent_directory(flags.tokenizer);
  if (!is_file(places.tokenizer + "/spiece.model"))
    throw Error(fmt::format("--tokenizer {}: no spiece.model there", flags.tokenizer), "give the folder google/umt5-xxl of the original checkpoint, or a pipeline's folder tokenizer");
}

int64_t bytes_of(const std::string& path) {
  std::error_code ec;
  if (path.ends_with(".json")) return bytes_of(parent_directory(path));
  if (!is_folder(path)) {
    const auto bytes = fs::file_size(path, ec);
    return ec ? 0 : static_cast<int64_t>(bytes);
  }
  int64_t bytes = 0;
  for (const auto& e : fs::directory_iterator(path, ec))
    if (has_weights_name(e.path().string()) && is_file(e.path().string())) bytes += static_cast<int64_t>(e.file_size(ec));
  return bytes;
}

}  // namespace

CheckpointPlaces find_places(const std::string& given, const PartFlags& flags) {
  std::error_code ec;
  std::string source = given;
  while (source.size() > 1 && source.back() == '/') source.pop_back();
  if (!fs::exists(source, ec)) throw Error(fmt::format("{}: no such file or folder", given), "check the name");
  if (ModelDirectory::is_one(source)) throw Error(fmt::format("{}: already a model directory", given), "use it as it is, or --export it first");
  CheckpointPlaces places;
  find_parts(find_networks(source, given, places), places);
  apply_flags(flags, places);
  return places;
}

int64_t weight_bytes(const CheckpointPlaces& places) {
  int64_t bytes = bytes_of(places.weights) + (places.weights_2.empty() ? 0 : bytes_of(places.weights_2));
  for (const auto* list : {&places.vae, &places.text_encoder})
    if (!list->empty()) bytes += bytes_of((*list)[0]);
  return bytes;
}

}  // namespace megaslide
