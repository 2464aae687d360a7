#include "model/umt5.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <future>

#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "text/clean.h"

namespace megaslide {
namespace {

// Rows of a pass through all blocks: more texts take a further pass. At UMT5's width a pass holds 270 MB of rows.
constexpr int64_t kPassRows = 8192;
// Rows of texts that go through a block together: as many as the longest prompt has, and temporaries.
constexpr int64_t kTogetherRows = 512;

// Drops its work: for measuring a workspace.
class DryStream final : public Stream {
 public:
  Backend backend() const override { return Backend::kSim; }
  void enqueue(const char*, const Cost&, std::function<void()>) override {}
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_{1};
};

BatchShape text_shape(int64_t rows) { return {.width = rows}; }

// Texts [first, end) that go through a block together, and their rows [at, at + rows) in a pass.
struct Together {
  size_t first, end;
  int64_t at, rows;
  std::vector<int64_t> lengths;
};

// The rows of some texts, one after the other.
struct Pass {
  Pass(const std::vector<std::vector<int64_t>>& texts, size_t first_text, int64_t width) : first(first_text), end(first_text) {
    while (end < texts.size() && (end == first || rows + static_cast<int64_t>(texts[end].size()) <= kPassRows)) {
      starts.push_back(rows);
      rows += static_cast<int64_t>(texts[end++].size());
    }
    x = HostTensor(DType::kF32, {rows, width});
    y = HostTensor(DType::kF32, {rows, width});
  }
  // The cut of this pass into texts that go together; alone where not `join`.
  std::vector<Together> groups(const std::vector<std::vector<int64_t>>& texts, bool join) const {
    std::vector<Together> all;
    for (size_t t = first; t < end; ++t) {
      const auto n = static_cast<int64_t>(texts[t].size());
      if (all.empty() || !join || all.back().rows + n > kTogetherRows) all.push_back({t, t, starts[t - first], 0, {}});
      ++all.back().end;
      all.back().rows += n;
      all.back().lengths.push_back(n);
    }
    return all;
  }
  size_t first, end;
  int64_t rows = 0;
  std::vector<int64_t> starts;
  HostTensor x, y;
};

// Reads blocks ahead: while one is used the next is read by a thread of its own.
class BlockReader {
 public:
  BlockReader(const Umt5Weights& weights, const Module& block, DType dtype, int64_t layers, ThreadPool& pool)
      : weights_(weights), block_(block), dtype_(dtype), layers_(layers), pool_(pool),
        slabs_{HostTensor(dtype, {block.layout().elements}), HostTensor(dtype, {block.layout().elements})} {
    start(0);
  }
  // The slab of `layer`, which follows that of the call before; it holds until the next call.
  const void* get(int64_t layer) {
    reading_.get();
    if (layer + 1 < layers_) start(layer + 1);
    return slabs_[layer % 2].data();
  }

 private:
  void start(int64_t layer) {
    reading_ = std::async(std::launch::async, [this, layer] { weights_.read_layer(pool_, layer, block_, dtype_, slabs_[layer % 2].data()); });
  }
  const Umt5Weights& weights_;
  const Module& block_;
  DType dtype_;
  int64_t layers_;
  ThreadPool& pool_;
  HostTensor slabs_[2];
  std::future<void> reading_;  // last: its end waits for the thread
};

// What the longest of the texts needs in a block.
int64_t workspace_bytes(const Umt5Block& block, DType dtype, int64_t rows) {
  DryStream dry;
  Workspace measure;
  const auto* anything = reinterpret_cast<const std::byte*>(uintptr_t{4096});  // NOLINT(performance-no-int-to-ptr): never read
  block.forward({dry, measure, text_shape(rows), dtype, anything, anything}, {}, nullptr, nullptr, nullptr);
  return measure.high_water();
}

std::string need_folder(const ModelParts& parts) {
  std::error_code ignored;
  for (const char* sub : {"text_encoder", "tokenizer"})
    if (parts.folder.empty() || !std::filesystem::is_directory(parts.folder + "/" + sub, ignored))
      throw usage_error(fmt::format("the model \"{}\" wants a UMT5 text encoder, but {} is not there", parts.config.name,
                                    parts.folder.empty() ? std::string(sub) + "/" : parts.folder + "/" + sub),
                        "import a whole diffusers pipeline with shard-weights, or put its text_encoder and tokenizer folders beside the weights");
  return parts.folder;
}

}  // namespace

Umt5::Umt5(const std::string& folder, DType compute_dtype)
    : config_(read_umt5_config(folder + "/config.json")), dtype_(compute_dtype), block_(config_), weights_(folder, config_, block_) {
  MS_CHECK(compute_dtype == DType::kBF16 || compute_dtype == DType::kF32, "{}", dtype_name(compute_dtype));
}

std::vector<HostTensor> Umt5::run(ThreadPool& pool, const std::vector<std::vector<int64_t>>& texts) const {
  return run(pool, texts, [](int64_t, size_t, const float*) {});
}

std::vector<HostTensor> Umt5::run(ThreadPool& pool, const std::vector<std::vector<int64_t>>& texts, Observer after_block) const {
  std::vector<HostTensor> out;
  if (texts.empty()) return out;
  const bool join = linear_rows_independent(dtype_);
  int64_t longest = 1, all = 0;
  for (const auto& ids : texts) {
    longest = std::max(longest, static_cast<int64_t>(ids.size()));
    all += static_cast<int64_t>(ids.size());
  }
  const int64_t most = join ? std::max(longest, std::min(all, kTogetherRows)) : longest;
  PoolStream stream(pool);
  HostTensor space(DType::kU8, {workspace_bytes(block_, dtype_, most)});
  HostTensor packed(DType::kU8, {block_.packed_bytes(dtype_, false)});
  Workspace workspace(space.data(), space.bytes());
  const HostTensor norm = weights_.final_norm();
  while (out.size() < texts.size()) {
    Pass pass(texts, out.size(), config_.width);
    for (size_t t = pass.first; t < pass.end; ++t)
      weights_.read_embeddings(texts[t], pass.x.f32() + pass.starts[t - pass.first] * config_.width);
    const std::vector<Together> groups = pass.groups(texts, join);
    BlockReader reader(weights_, block_, dtype_, config_.layers, pool);
    for (int64_t l = 0; l < config_.layers; ++l) {
      const void* slab = reader.get(l);
      block_.pack(stream, dtype_, false, slab, packed.data());
      for (const Together& g : groups) {
        const LayerCall call{stream, workspace, text_shape(g.rows), dtype_, slab, packed.data()};
        block_.forward_texts(call, g.lengths, pass.x.f32() + g.at * config_.width, pass.y.f32() + g.at * config_.width);
      }
      for (size_t t = pass.first; t < pass.end; ++t) after_block(l, t, pass.y.f32() + pass.starts[t - pass.first] * config_.width);
      std::swap(pass.x, pass.y);
    }
    for (size_t t = pass.first; t < pass.end; ++t) {
      const auto n = static_cast<int64_t>(texts[t].size());
      HostTensor& rows = out.emplace_back(DType::kF32, Shape{n, config_.width});
      rms_norm_forward(stream, rows.data(), pass.x.f32() + pass.starts[t - pass.first] * config_.width, norm.f32(), n, config_.width,
                       static_cast<float>(config_.eps), DType::kF32);
    }
  }
  return out;
}

Umt5Encoder::Umt5Encoder(const ModelParts& parts, DType compute_dtype)
    : parts_(parts), network_(need_folder(parts) + "/text_encoder", compute_dtype),
      tokenizer_(Tokenizer::open(parts.folder + "/tokenizer")) {
  const Umt5Config& c = network_.config();
  if (c.width != parts.config.text_dim)
    throw Error(fmt::format("{}/text_encoder: gives rows of {}, the model \"{}\" reads rows of {}", parts.folder, c.width, parts.config.name, parts.config.text_dim),
                "use the text encoder that came with the model");
  if (tokenizer_.size() > c.vocab_size)
    throw Error(fmt::format("{}/tokenizer: has {} pieces, the text encoder knows {}", parts.folder, tokenizer_.size(), c.vocab_size),
                "use the tokenizer that came with the text encoder");
}

std::string Umt5Encoder::identity() const {
  std::call_once(identified_, [this] { identity_ = umt5_identity(parts_); });
  return identity_;
}

std::vector<EncodedText> Umt5Encoder::encode_all(ThreadPool& pool, std::span<const std::string> prompts) const {
  std::vector<EncodedText> out(prompts.size());
  std::vector<std::vector<int64_t>> ids(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    out[i].cleaned = clean_prompt(prompts[i]);
    TokenizedText text = tokenizer_.encode(out[i].cleaned, parts_.config.text_len);
    out[i].cut = text.cut(parts_.config.text_len);
    out[i].ids = text.ids;
    ids[i] = std::move(text.ids);
  }
  std::vector<HostTensor> rows = network_.run(pool, ids);
  for (size_t i = 0; i < out.size(); ++i) out[i].rows = std::move(rows[i]);
  return out;
}

std::string umt5_identity(const ModelParts& parts) {
  const std::string folder = need_folder(parts);
  const auto known = parts.sha256.find("tokenizer/spiece.model");
  return fmt::format("umt5:{}:{}:{}", part_identity(parts, "text_encoder"),
                     tokenizer_identity(folder + "/tokenizer", known == parts.sha256.end() ? "" : known->second), parts.config.text_len);
}

}  // namespace megaslide
