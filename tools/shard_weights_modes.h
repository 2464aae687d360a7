// What the shard-weights program does with its arguments: import, make, export, or look at a model.
#pragma once
#include <cstdint>
#include <string>

#include "common/run_tool.h"

namespace megaslide {

struct ShardArguments {
  std::string source, out, init, layout, dtype = "keep", attention, attention_of, vae, text_encoder, tokenizer, prefix;
  int64_t max_shard_bytes = 5'000'000'000;
  bool info = false, verify = false, hash = false, overwrite = false;
};

int shard_weights(Tool& tool, const ShardArguments& arguments);

}  // namespace megaslide
