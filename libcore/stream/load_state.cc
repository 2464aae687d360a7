#include <algorithm>

#include "base/error.h"
#include "io/model_directory.h"
#include "io/parameter_reader.h"
#include "io/wan_names.h"
#include "model/init_model.h"
#include "stream/host_store.h"

namespace megaslide {
namespace {

void load_parameter(HostStore& store, int m, size_t i, const SafetensorsFile& file, ThreadPool& pool, bool moments) {
  ModuleState& s = store.module(m);
  const ParamSpec& spec = s.module->params()[i];
  const std::string name = s.prefix + spec.name;
  const int64_t at = s.module->layout().offset[i], n = element_count(spec.shape);
  std::vector<float> p;
  const TensorInfo* info = file.find(name);
  if (!info && is_dsa_tensor(name)) {
    // A dense model is run with deformable attention: its own parameters start as the network's own specification says.
    p.resize(static_cast<size_t>(n));
    fill_initial(p, spec, 0, static_cast<uint64_t>(m) << 32 | i);
    store.write_master(pool, m, at, n, p.data());
    return;
  }
  if (!info || info->shape != spec.shape)
    throw Error(fmt::format("{}: {} should be {}, {}", file.path(), name, to_string(spec.shape),
                            info ? "is " + to_string(info->shape) : "is missing"),
                "the weights do not go with this configuration: compare model.dsa and model.attention with shard-weights --info");
  const ParameterReader reader(file, name);
  p.resize(static_cast<size_t>(std::min(n, kStatePiece)));
  for (int64_t first = 0; first < n; first += kStatePiece) {
    const int64_t count = std::min(kStatePiece, n - first);
    reader.master(p.data(), first, count);
    store.write_master(pool, m, at + first, count, p.data());
    if (!moments || !s.exp_avg || !reader.has_moments()) continue;
    reader.first_moment(p.data(), first, count);
    store.write_first_moment(pool, m, i, first, count, p.data());
    reader.second_moment(p.data(), first, count);
    store.write_second_moment(pool, m, i, first, count, p.data());
  }
  reader.drop_pages();
}

}  // namespace

void load_state(HostStore& store, const ModelDirectory& directory, ThreadPool& pool, bool moments) {
  MS_CHECK(store.modules() == directory.layers() + 2);
  const bool streamed = store.options().streamed_slots > 0;
  for (int m = 0; m < store.modules(); m += streamed ? store.modules() - 1 : 1) {
    const SafetensorsFile file = directory.part(m - 1);
    store.change_module(m, [&](ModuleState& s) {
      for (size_t i = 0; i < s.module->params().size(); ++i) load_parameter(store, m, i, file, pool, moments);
    });
  }
}

}  // namespace megaslide
