// The one thing that a tokenizer.json is asked.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace megaslide {

// `model.byte_fallback`, where it is given. Throws Error naming `source` where the text is no JSON.
std::optional<bool> byte_fallback_of(std::string_view json, const std::string& source);
// Of FOLDER/tokenizer.json; none where there is no such file.
std::optional<bool> byte_fallback_in(const std::string& folder);

}  // namespace megaslide
