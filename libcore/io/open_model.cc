#include "io/open_model.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "config/load.h"
#include "io/shard.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestImport = int64_t{4} << 30;

std::shared_ptr<void> make_temporary_directory(std::string& path) {
  path = (fs::temp_directory_path() / "megaslide-XXXXXX").string();
  if (!mkdtemp(path.data())) throw system_error("create", path, errno, "make the temporary directory writable, or set TMPDIR");
  return {nullptr, [path](void*) {
            std::error_code ec;
            fs::remove_all(path, ec);
          }};
}

int64_t weight_bytes(const std::string& path) {
  if (!fs::is_directory(path)) return static_cast<int64_t>(fs::file_size(path));
  int64_t bytes = 0;
  for (const auto& e : fs::recursive_directory_iterator(path))
    if (e.is_regular_file() && e.path().extension() == ".safetensors") bytes += static_cast<int64_t>(e.file_size());
  return bytes;
}

}  // namespace

OpenModel::OpenModel(const std::string& argument) {
  if (ModelDirectory::is_one(argument)) {
    directory_ = std::make_shared<ModelDirectory>(ModelDirectory::open(argument));
    return;
  }
  if (!fs::exists(argument)) {
    throw usage_error(fmt::format("{}: no such model", argument),
                      fmt::format("give a model directory; a preset gets weights by: shard-weights --init {} -o DIR", argument));
  }
  if (weight_bytes(argument) > kLargestImport)
    throw usage_error(fmt::format("{}: a foreign checkpoint of {}", argument, format_bytes(weight_bytes(argument))),
                      fmt::format("import it once: shard-weights {} -o DIR, and give DIR", argument));
  std::string folder;
  temporary_ = make_temporary_directory(folder);
  import_checkpoint(argument, folder + "/model", {});
  directory_ = std::make_shared<ModelDirectory>(ModelDirectory::open(folder + "/model"));
}

ModelConfig model_config_of(const std::string& argument) {
  if (ModelDirectory::is_one(argument)) return ModelDirectory::open(argument).config();
  const bool yaml = argument.ends_with(".yaml") || argument.ends_with(".yml");
  if (!yaml && fs::exists(argument)) {
    std::string folder = argument;
    if (fs::is_directory(folder + "/transformer")) folder += "/transformer";
    const std::string config = fs::is_directory(folder) ? folder + "/config.json" : "";
    const bool has_config = !config.empty() && fs::exists(config);
    return identify_wan(SafetensorsSource::open(folder), has_config ? read_file(config) : "", config).config;
  }
  return load_model_config(argument);
}

}  // namespace megaslide
