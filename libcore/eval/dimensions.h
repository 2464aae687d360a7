// The sixteen dimensions of VBench, how their scores are normalised and how they become quality, semantic and total
// (spec vbench.md, "Dimensions").
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

enum class DimensionFamily { kQuality, kSemantic, kReference };

struct Dimension {
  std::string_view name;
  double low, high;  // raw scores that normalise to 0 and 1
  double weight;     // within its family; 0: outside the total
  DimensionFamily family;
  // Networks it needs (names of files under --weights); empty for none.
  std::vector<std::string_view> networks;
  // Why it is not computed here whatever networks there are, empty where it is.
  std::string_view missing;
  double video_scale = 1;  // a video's score over the dimension's: MUSIQ's go to 100
};

// In the order of VBench, then psnr and ssim, which are no part of it: no bounds, no weight, not in any total.
const std::vector<Dimension>& dimensions();
const Dimension* find_dimension(std::string_view name);
// Throws a usage Error with the nearest name.
const Dimension& require_dimension(const std::string& name);

// (raw - low) / (high - low), not clamped: upstream does not clamp either.
double normalised_score(const Dimension& d, double raw);

struct Aggregate {
  int present = 0;  // of the sixteen
  std::map<std::string, double> normalised;
  std::optional<double> quality, semantic, total;  // nullopt: withheld
  // "quality", "semantic", "total" -> why, for the withheld ones.
  std::map<std::string, std::string> withheld;
  std::vector<std::string> outside;     // names whose normalised score is outside [0, 1], ascending
  std::vector<std::string> arithmetic;  // the sums as text, one line each
};

// quality = sum(weight * normalised) / sum(weight) over its seven, semantic the same over its nine, total =
// (4 quality + semantic) / 5. A family with an absent dimension is withheld, and the total with it: upstream would
// count the absent one as raw 0. `clamp` cuts the normalised scores to [0, 1] first (not comparable with published
// totals). Names outside VBench are ignored. Raw scores must be finite.
Aggregate aggregate_scores(const std::map<std::string, double>& raw, bool clamp = false);

}  // namespace megaslide
