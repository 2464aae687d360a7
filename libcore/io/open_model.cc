#include "io/open_model.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "config/load.h"
#include "io/shard.h"
#include "io/wan_variants.h"

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

void refuse_conditioned(const ModelConfig& c, const std::string& argument) {
  if (is_conditioned(c))
    throw usage_error(fmt::format("{}: an image-to-video network ({} channels in, {} out), whose image input is not supported", argument, c.in_channels, c.out_channels),
                      "use a text-to-video model; shard-weights --export gives this one back");
}

}  // namespace

OpenModel::OpenModel(const std::string& argument) {
  if (ModelDirectory::is_one(argument)) {
    directory_ = std::make_shared<ModelDirectory>(ModelDirectory::open(argument));
    refuse_conditioned(directory_->config(), argument);
    return;
  }
  if (!fs::exists(argument)) {
    throw usage_error(fmt::format("{}: no such model", argument),
                      fmt::format("give a model directory; a preset gets weights by: shard-weights --init {} -o DIR", argument));
  }
  const int64_t bytes = weight_bytes(find_places(argument, {}));
  if (bytes > kLargestImport)
    throw usage_error(fmt::format("{}: a foreign checkpoint of {}", argument, format_bytes(bytes)),
                      fmt::format("import it once: shard-weights {} -o DIR, and give DIR", argument));
  std::string folder;
  temporary_ = make_temporary_directory(folder);
  import_checkpoint(argument, folder + "/model", {});
  directory_ = std::make_shared<ModelDirectory>(ModelDirectory::open(folder + "/model"));
  refuse_conditioned(directory_->config(), argument);
}

ModelConfig model_config_of(const std::string& argument) {
  if (ModelDirectory::is_one(argument)) return ModelDirectory::open(argument).config();
  const bool yaml = argument.ends_with(".yaml") || argument.ends_with(".yml");
  if (!yaml && fs::exists(argument)) return foreign_config(argument);
  return load_model_config(argument);
}

}  // namespace megaslide
