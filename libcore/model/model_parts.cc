#include "model/model_parts.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "io/model_directory.h"
#include "io/open_model.h"

namespace megaslide {

namespace fs = std::filesystem;

ModelParts parts_of(const ModelDirectory& model, const std::string& folder) {
  ModelParts parts(model.config());
  parts.folder = folder.empty() ? model.parts_folder() : folder;
  if (parts.folder.empty()) return parts;
  const ModelManifest manifest = parts.folder == model.path() ? model.manifest() : ModelDirectory::open_unchecked(parts.folder).manifest();
  for (const ManifestFile& f : manifest.files) parts.sha256[f.name] = f.sha256;
  return parts;
}

ModelParts open_parts(const std::string& argument) {
  if (ModelDirectory::is_one(argument)) return parts_of(ModelDirectory::open(argument));
  ModelParts parts(model_config_of(argument));
  std::error_code ignored;
  if (fs::is_directory(argument, ignored)) parts.folder = argument;
  return parts;
}

std::string part_identity(const ModelParts& parts, const std::string& subfolder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& e : fs::directory_iterator(parts.folder + "/" + subfolder, ignored))
    if (e.path().extension() == ".safetensors") names.push_back(subfolder + "/" + e.path().filename().string());
  if (names.empty()) throw Error(fmt::format("{}/{}: no .safetensors file", parts.folder, subfolder), "import the whole checkpoint again with shard-weights");
  std::sort(names.begin(), names.end());
  Sha256 all;
  for (const std::string& n : names) {
    const auto known = parts.sha256.find(n);
    all.update((known != parts.sha256.end() ? known->second : sha256_file(parts.folder + "/" + n)) + "\n");
  }
  return all.hex();
}

}  // namespace megaslide
