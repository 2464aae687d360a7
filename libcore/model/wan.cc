#include "model/wan.h"

#include "model/wan_block.h"
#include "model/wan_ends.h"

namespace megaslide {

Network make_wan_network(const ModelConfig& config, bool fp8_forward) {
  Network n;
  n.embedding = std::make_unique<WanEmbedding>(config);
  for (int64_t layer = 0; layer < config.layers; ++layer) n.layers.push_back(std::make_unique<WanBlock>(config, layer, fp8_forward));
  n.head = std::make_unique<WanHead>(config);
  n.width = config.dim;
  n.text_width = config.text_dim;
  n.in_channels = config.in_channels;
  n.out_channels = config.out_channels;
  n.needs_displacement = config.attention.needs_displacement();
  return n;
}

}  // namespace megaslide
