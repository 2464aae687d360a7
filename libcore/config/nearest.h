#pragma once
#include <string>
#include <vector>

namespace megaslide {

// The candidate with the smallest edit distance to `name` (insert, delete, replace, swap of neighbours), or "" when none
// is close enough to be what was meant: more than a third of the length away.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace megaslide
