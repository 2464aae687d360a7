#include "model/umt5_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

constexpr const char* kShared = "shared.weight";
constexpr const char* kTied = "encoder.embed_tokens.weight";
constexpr const char* kFinalNorm = "encoder.final_layer_norm.weight";
constexpr size_t kListedExtras = 12;  // of tensors that should not be there: a file may hold any number

std::string block_prefix(int64_t layer) { return fmt::format("encoder.block.{}.", layer); }

std::map<std::string, Shape> expected_tensors(const Umt5Config& c, const Module& block, const std::string& embeddings) {
  std::map<std::string, Shape> all{{embeddings, {c.vocab_size, c.width}}, {kFinalNorm, {c.width}}};
  for (int64_t l = 0; l < c.layers; ++l)
    for (const ParamSpec& p : block.params()) all[block_prefix(l) + p.name] = p.shape;
  return all;
}

void check_tensors(const SafetensorsSource& source, const std::map<std::string, Shape>& expected, const std::string& folder) {
  std::vector<std::string> problems;
  for (const auto& [name, shape] : expected) {
    const auto found = source.tensors().find(name);
    if (found == source.tensors().end()) {
      problems.push_back(fmt::format("{} is missing", name));
      continue;
    }
    const TensorInfo& t = found->second.info;
    if (t.shape != shape) problems.push_back(fmt::format("{} is {}, expected {}", name, to_string(t.shape), to_string(shape)));
    if (!is_weight_dtype(t.dtype)) problems.push_back(fmt::format("{} is {}, expected F32, F16 or BF16", name, dtype_name(t.dtype)));
  }
  size_t extras = 0;
  for (const auto& [name, entry] : source.tensors()) {
    if (expected.count(name) || name == kTied || name.starts_with("decoder.") || name.starts_with("lm_head.")) continue;
    if (++extras <= kListedExtras) problems.push_back(fmt::format("{} is none of a UMT5 encoder's tensors", quote_for_message(name)));
  }
  if (extras > kListedExtras) problems.push_back(fmt::format("and {} more that are none", extras - kListedExtras));
  if (problems.empty()) return;
  std::string list;
  for (const std::string& p : problems) list += "\n  " + p;
  throw Error(fmt::format("{}: the weights do not fit its config.json:{}", folder, list),
              "use the text_encoder folder of the model as it was published, or import the checkpoint again with shard-weights");
}

// n elements from any alignment.
void convert(std::byte* to, DType to_type, const std::byte* from, DType from_type, int64_t n) {
  if (to_type == from_type) {
    std::memcpy(to, from, static_cast<size_t>(n * dtype_bytes(to_type)));
    return;
  }
  std::array<float, 4096> part;
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(part.size())) {
    const int64_t count = std::min(n - i, static_cast<int64_t>(part.size()));
    convert_to_f32(part.data(), from + i * dtype_bytes(from_type), from_type, count);
    convert_from_f32(to + i * dtype_bytes(to_type), to_type, part.data(), count);
  }
}

}  // namespace

Umt5Weights::Umt5Weights(const std::string& folder, const Umt5Config& config, const Module& block)
    : source_(SafetensorsSource::open(folder)), embeddings_(kShared), width_(config.width) {
  if (!source_.tensors().count(kShared) && source_.tensors().count(kTied)) embeddings_ = kTied;
  check_tensors(source_, expected_tensors(config, block, embeddings_), folder);
}

void Umt5Weights::read_embeddings(std::span<const int64_t> ids, float* rows) const {
  const TensorView table = source_.view(embeddings_);
  for (const int64_t id : ids) {
    MS_CHECK(id >= 0 && id < table.shape[0], "id {} of {}", id, table.shape[0]);
    convert_to_f32(rows, table.data + id * width_ * dtype_bytes(table.dtype), table.dtype, width_);
    rows += width_;
  }
  source_.drop_pages(embeddings_);
}

void Umt5Weights::read_layer(ThreadPool& pool, int64_t layer, const Module& block, DType dtype, void* slab) const {
  constexpr int64_t kPiece = 1 << 20;  // elements
  for (const ParamSpec& p : block.params()) source_.read_ahead(block_prefix(layer) + p.name);
  for (size_t p = 0; p < block.params().size(); ++p) {
    const std::string name = block_prefix(layer) + block.params()[p].name;
    const TensorView from = source_.view(name);
    auto* to = static_cast<std::byte*>(slab) + block.layout().offset[p] * dtype_bytes(dtype);
    pool.parallel_for(from.elements(), kPiece, [&](int64_t begin, int64_t end) {
      convert(to + begin * dtype_bytes(dtype), dtype, from.data + begin * dtype_bytes(from.dtype), from.dtype, end - begin);
    });
    source_.drop_pages(name);
  }
}

HostTensor Umt5Weights::final_norm() const { return HostTensor::f32_from(source_.view(kFinalNorm)); }

}  // namespace megaslide
