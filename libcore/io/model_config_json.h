// ModelConfig as JSON, as it stands in a model directory's manifest. Every field is written; reading is strict.
#pragma once
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "config/model_config.h"

namespace megaslide {

nlohmann::json model_config_to_json(const ModelConfig& c);

// Throws Error "SOURCE: ..." listing every missing, unknown, mistyped or invalid field.
ModelConfig model_config_from_json(const nlohmann::json& from, const std::string& source);

}  // namespace megaslide
