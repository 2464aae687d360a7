#include "stream/weight_reader.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "io/parameter_reader.h"
#include "kernels/adamw/adamw.h"

namespace megaslide {
namespace {

constexpr int64_t kPiece = 1 << 18;  // elements

void read_piece(const ParameterReader& reader, DType compute_dtype, void* out, int64_t first, int64_t n) {
  if (compute_dtype == DType::kF32) return reader.master(static_cast<float*>(out) + first, first, n);
  auto* w = static_cast<bf16*>(out) + first;
  if (reader.stored().dtype == DType::kBF16) return reader.weight_bf16(&w->bits, first, n);
  std::vector<float> p(static_cast<size_t>(n));
  reader.master(p.data(), first, n);
  for (int64_t i = 0; i < n; ++i) w[i] = master_weight(p[static_cast<size_t>(i)]);
}

}  // namespace

void read_weights(ModuleState& s, DType compute_dtype, const SafetensorsFile& file, ThreadPool& pool) {
  for (size_t i = 0; i < s.module->params().size(); ++i) {
    const ParamSpec& spec = s.module->params()[i];
    const ParameterReader reader(file, s.prefix + spec.name);
    const int64_t n = element_count(spec.shape);
    if (reader.elements() != n)
      throw Error(fmt::format("{}: {}{} should be {}", file.path(), s.prefix, spec.name, to_string(spec.shape)),
                  "the weights do not go with this configuration: compare it with shard-weights --info");
    void* out = static_cast<std::byte*>(s.weights) + s.module->layout().offset[i] * dtype_bytes(compute_dtype);
    pool.parallel_for(n, kPiece, [&](int64_t begin, int64_t end) { read_piece(reader, compute_dtype, out, begin, end - begin); });
    reader.drop_pages();
  }
}

PipelineHooks WeightReader::hooks() {
  return {.before_upload = [this](int module, const Event& released) { return read(module, released); }};
}

Event WeightReader::read(int module, const Event& released) {
  if (module == 0 || module == store_.modules() - 1) return {};  // the ends are resident
  Stream& host = device_.host();
  device_.wait(host, released);
  ModuleState& s = store_.module(module);
  const DType dtype = store_.options().compute_dtype;
  host.enqueue("read weights", {KernelClass::kHost, 0, static_cast<double>(s.module->layout().elements * dtype_bytes(dtype))},
               [this, &host, &s, dtype, module] { read_weights(s, dtype, model_.layer(module - 1), host.pool()); });
  return device_.record(host);
}

}  // namespace megaslide
