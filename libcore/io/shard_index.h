// The index of a sharded checkpoint: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file name}}.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace megaslide {

struct ShardIndex {
  std::map<std::string, std::string> files;  // tensor → file name, plain: shards lie beside their index
  std::optional<double> total_size;
};

// Throws Error with position for anything else, duplicate keys and names that leave the folder among it.
ShardIndex read_shard_index(const std::string& path);
ShardIndex parse_shard_index(std::string_view text, const std::string& path);

}  // namespace megaslide
