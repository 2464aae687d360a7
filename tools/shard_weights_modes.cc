#include "shard_weights_modes.h"

#include "base/error.h"
#include "config/load.h"
#include "io/shard.h"
#include "model/init_model.h"

namespace megaslide {
namespace {

bool looks(const ShardArguments& a) { return a.info || a.verify || a.hash; }
bool imports(const ShardArguments& a) { return !looks(a) && a.init.empty() && a.layout.empty(); }

void check(const ShardArguments& a) {
  if (!a.init.empty() + !a.layout.empty() + a.info + a.verify + a.hash > 1)
    throw usage_error("give only one of --init, --export, --info, --verify and --hash", "see shard-weights --help");
  if (a.init.empty() && a.source.empty()) throw usage_error("nothing to work on", "give SRC, or --init; see shard-weights --help");
  if (!a.init.empty() && !a.source.empty()) throw usage_error("--init makes a model from nothing: " + a.source + " has no place", "leave it out");
  if (!imports(a) && !(a.vae + a.text_encoder + a.tokenizer).empty())
    throw usage_error("--vae, --text-encoder and --tokenizer belong to an import", "leave them out");
  if (!a.attention_of.empty() && (!imports(a) || !a.attention.empty()))
    throw usage_error("--attention-of belongs to an import without --attention", "with --init the model file says it");
  if (a.layout.empty() && !a.prefix.empty()) throw usage_error("--prefix belongs to --export", "leave it out");
  if (looks(a) != a.out.empty())
    throw usage_error(looks(a) ? "-o has no meaning with --info, --verify and --hash" : "where to write is missing: give -o");
}

Verdict run(Tool& tool, const ShardArguments& a, StoreDtype dtype, ThreadPool& pool) {
  if (a.verify) return verify_model(a.source, pool, tool.stop);
  if (a.hash) return hash_model(ModelDirectory::open(a.source), tool.stop);
  if (a.info) return describe_model(ModelDirectory::open(a.source));
  if (!a.layout.empty()) {
    const WanLayout layout = a.layout == "wan" ? WanLayout::kOriginal : WanLayout::kDiffusers;
    return list_files(export_checkpoint(ModelDirectory::open(a.source), a.out, {layout, dtype, a.max_shard_bytes, a.overwrite, a.prefix}, tool.stop));
  }
  if (!a.init.empty()) {
    ModelConfig config = load_model_config(a.init);
    if (!a.attention.empty()) config.attention.kind = parse_attention_kind(a.attention);
    const DType stored = dtype == StoreDtype::kBf16 ? DType::kBF16 : DType::kF32;
    init_model_directory(a.out, config, tool.flags.seed.value_or(0), stored, a.overwrite, pool, tool.stop);
  } else {
    const AttentionKind kind = a.attention.empty() ? AttentionKind::kDense : parse_attention_kind(a.attention);
    ImportOptions options{.dtype = dtype, .attention = kind, .replace = a.overwrite, .parts = {a.vae, a.text_encoder, a.tokenizer}};
    if (!a.attention_of.empty()) options.attention_of = load_model_config(a.attention_of);
    import_checkpoint(a.source, a.out, options, tool.stop);
  }
  return describe_model(ModelDirectory::open(a.out));
}

}  // namespace

int shard_weights(Tool& tool, const ShardArguments& a) {
  check(a);
  const StoreDtype dtype = a.dtype == "bf16" ? StoreDtype::kBf16 : a.dtype == "fp32" ? StoreDtype::kFp32 : StoreDtype::kKeep;
  ThreadPool pool(tool.flags.threads);
  const Verdict verdict = run(tool, a, dtype, pool);
  tool.write(tool.flags.json ? verdict.json : verdict.text);
  return verdict.good ? 0 : 3;
}

}  // namespace megaslide
