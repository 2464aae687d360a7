// JSON files of users: errors name the file and the place.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace megaslide {

nlohmann::json parse_json_text(const std::string& text, const std::string& where);
nlohmann::json parse_json_file(const std::string& path);

}  // namespace megaslide
