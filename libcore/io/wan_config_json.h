// The config.json beside a Wan transformer, in diffusers' keys or in Wan's own.
#pragma once
#include <string>
#include <string_view>

#include "config/model_config.h"

namespace megaslide {

// Puts what shapes do not tell (heads, text_len, eps, …) into `c`, whose dim and layers are those of the weights; sizes that
// shapes do tell are taken from the file, too, so that the tensors are held against it. Unknown keys and nulls are passed over.
// Throws Error "PATH: …" where the file is no object, a value is of another type or out of range, or the weights differ from it.
void merge_wan_config_json(std::string_view text, const std::string& path, ModelConfig& c);

}  // namespace megaslide
