// What lies in the --weights folder, and which dimensions stay withheld for want of it.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "eval/dimensions.h"

namespace megaslide {

struct WeightsReport {
  std::string folder;                           // empty: none given
  std::map<std::string, std::string> networks;  // name ("dino_vitb16") -> path, of those found
  // Whether `d` is computed here: all its networks, if it has any, are there.
  bool serves(const Dimension& d) const;
  // Why dimension `d` is withheld, and what to fetch.
  std::string reason(const Dimension& d) const;
};

// Looks for NAME.safetensors and NAME.pth of every network that a dimension names; reads none of them. Adds to `warnings` which
// are there and cannot be run, and the licences of those that bind their users to non-commercial use. Throws a usage Error when
// the folder does not exist.
WeightsReport inspect_weights(const std::string& folder, std::vector<std::string>& warnings);

// The licence under which a network's weights are published ("MIT"); empty for a name that is none of theirs.
std::string published_licence(std::string_view network);

}  // namespace megaslide
