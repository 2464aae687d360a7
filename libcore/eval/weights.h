// What lies in the --weights folder, and which dimensions stay withheld for want of it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "eval/dimensions.h"

namespace megaslide {

struct WeightsReport {
  std::string folder;                           // empty: none given
  std::map<std::string, std::string> networks;  // name ("dino_vitb16") -> path, of those found
  // Why dimension `d` is withheld.
  std::string reason(const Dimension& d) const;
};

// Looks for NAME.safetensors and NAME.pth of every network that a dimension names; reads none of them. Adds to
// `warnings` that networks which are there cannot be run by this version. Throws a usage Error when the folder does not
// exist.
WeightsReport inspect_weights(const std::string& folder, std::vector<std::string>& warnings);

}  // namespace megaslide
