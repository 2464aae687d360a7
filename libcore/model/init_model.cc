#include "model/init_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/progress.h"
#include "io/model_directory.h"
#include "io/shard.h"
#include "model/wan.h"

namespace megaslide {
namespace {

constexpr int64_t kPiece = 1 << 20;   // elements in memory at a time
constexpr int64_t kGrain = 1 << 15;   // elements a thread fills at a time

std::vector<ParamSpec> part_params(const ModelConfig& config, int64_t part) {
  return part < 0 ? wan_embedding_params(config) : part == config.layers ? wan_head_params(config) : wan_block_params(config, part);
}

}  // namespace

void fill_initial(std::span<float> out, const ParamSpec& p, uint64_t seed, uint64_t series, int64_t first) {
  switch (p.init) {
    case ParamInit::kZeros: std::fill(out.begin(), out.end(), 0.f); return;
    case ParamInit::kOnes: std::fill(out.begin(), out.end(), 1.f); return;
    case ParamInit::kLastOnes: {
      const double n = static_cast<double>(element_count(p.shape));
      // A share such as 1/3 of 3 may come out a rounding above its whole number.
      const auto zeros = element_count(p.shape) - static_cast<int64_t>(std::ceil(n * p.init_scale - 1e-9 * n));
      for (size_t i = 0; i < out.size(); ++i) out[i] = first + static_cast<int64_t>(i) >= zeros ? 1.f : 0.f;
      return;
    }
    case ParamInit::kNormal: return fill_normal(out, seed, series, p.init_scale, first);
    case ParamInit::kXavierUniform: {
      // Glorot & Bengio 2010: variance 2/(inputs + outputs); a convolution over patches is a matrix of its flattened inputs.
      const auto outputs = static_cast<double>(p.shape[0]), inputs = static_cast<double>(element_count(p.shape)) / outputs;
      return fill_uniform(out, seed, series, p.init_scale * std::sqrt(6 / (inputs + outputs)), first);
    }
  }
}

void init_model_directory(const std::string& path, const ModelConfig& config, uint64_t seed, DType dtype, bool replace, ThreadPool& pool,
                          StopToken stop) {
  MS_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  validate(config);
  check_model_output(path, replace);
  ModelDirectoryWriter writer(path, config, replace, parameter_count(config) * dtype_bytes(dtype));
  ModelSource source;
  source.layout = "init";
  source.path = config.name;
  source.seed = seed;
  writer.set_source(source);
  Progress progress("init", static_cast<double>(parameter_count(config)), "parameters");
  std::vector<float> values;
  std::vector<std::byte> stored;
  uint64_t series = 0;
  for (int64_t part = -1; part <= config.layers; ++part) {
    const std::vector<ParamSpec> params = part_params(config, part);
    const std::string prefix = part >= 0 && part < config.layers ? fmt::format("blocks.{}.", part) : "";
    std::vector<SafetensorsEntry> entries;
    entries.reserve(params.size());
    for (const ParamSpec& p : params) entries.push_back({prefix + p.name, dtype, p.shape});
    const std::string file = part < 0 ? kEmbedFile : part == config.layers ? kHeadFile : layer_file_name(part);
    writer.write_file(file, entries, [&](size_t i, const ModelDirectoryWriter::Sink& sink) {
      const int64_t n = element_count(params[i].shape);
      values.resize(static_cast<size_t>(std::min(n, kPiece)));
      stored.resize(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
      for (int64_t at = 0; at < n; at += kPiece) {
        stop.throw_if_requested();
        const int64_t count = std::min(kPiece, n - at);
        pool.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
          fill_initial({values.data() + begin, static_cast<size_t>(end - begin)}, params[i], seed, series, at + begin);
          convert_from_f32(stored.data() + begin * dtype_bytes(dtype), dtype, values.data() + begin, end - begin);
        });
        sink({stored.data(), static_cast<size_t>(count * dtype_bytes(dtype))});
        progress.add(static_cast<double>(count), file);
      }
      ++series;
    });
  }
  writer.commit();
}

}  // namespace megaslide
