#include <cstring>

#include "base/error.h"
#include "io/model_directory.h"
#include "stream/host_store.h"

namespace megaslide {
namespace {

// The fp32 master of a parameter from what its file holds: a master, a weight and its remainder, or a weight alone.
void read_parameter(const SafetensorsFile& file, const std::string& name, float* out, int64_t n) {
  if (const TensorInfo* master = file.find(name + ".master")) {
    convert_to_f32(out, file.view(*master).data, master->dtype, n);
    return;
  }
  const TensorView weight = file.view(name);
  convert_to_f32(out, weight.data, weight.dtype, n);
  const TensorInfo* low = file.find(name + ".master_low");
  if (!low) return;
  const std::byte* bytes = file.view(*low).data;
  for (int64_t i = 0; i < n; ++i) {
    int16_t r;
    std::memcpy(&r, bytes + 2 * i, 2);
    out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(out[i]) + static_cast<uint32_t>(int32_t{r}));
  }
}

}  // namespace

void load_state(HostStore& store, const ModelDirectory& directory, ThreadPool& pool, bool moments) {
  MS_CHECK(store.modules() == directory.layers() + 2);
  std::vector<float> p;
  for (int m = 0; m < store.modules(); ++m) {
    const SafetensorsFile file = directory.part(m - 1);
    ModuleState& s = store.module(m);
    const auto& params = s.module->params();
    for (size_t i = 0; i < params.size(); ++i) {
      const std::string name = s.prefix + params[i].name;
      const int64_t at = s.module->layout().offset[i], n = element_count(params[i].shape);
      const TensorInfo* info = file.find(name);
      if (!info || info->shape != params[i].shape)
        throw Error(fmt::format("{}: tensor {} {} should have shape {}", file.path(), name, info ? to_string(info->shape) : "is missing and",
                                to_string(params[i].shape)),
                    "the directory does not go with its manifest; import the model again");
      p.resize(static_cast<size_t>(n));
      read_parameter(file, name, p.data(), n);
      store.write_master(pool, m, at, n, p.data());
      if (moments && s.exp_avg) {
        convert_to_f32(s.exp_avg + at, file.view(name + ".exp_avg").data, DType::kF32, n);
        convert_to_f32(s.exp_avg_sq + at, file.view(name + ".exp_avg_sq").data, DType::kF32, n);
      }
      for (const char* suffix : {"", ".master", ".master_low", ".exp_avg", ".exp_avg_sq"})
        if (const TensorInfo* t = file.find(name + suffix)) file.drop_pages(*t);
    }
  }
}

}  // namespace megaslide
