// Scores that networks have given, kept in a folder, so that a run that was interrupted goes on where it stopped and a repeated one
// computes nothing twice. A score is found by what it depends on: the video's bytes, the networks' bytes, the text, the type of
// products, where they are made, the dimension.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/metric.h"
#include "eval/networks.h"

namespace megaslide {

class ScoreCache {
 public:
  ScoreCache() = default;                   // keeps nothing
  explicit ScoreCache(std::string folder);  // makes it; throws Error where it cannot
  bool keeps() const { return !folder_.empty(); }

  // nullopt where there is none, or a file that is no score: that is computed again.
  std::optional<Score> find(const std::string& key) const;
  void store(const std::string& key, const Score& score) const;  // whole or not at all

 private:
  std::string path_of(const std::string& key) const;
  std::string folder_;
};

// SHA-256 of a video file, or of the names and bytes of a folder's pictures.
std::string video_content_hash(const std::string& path);
// Names of the networks that a dimension's score depends on.
std::vector<std::string_view> networks_of(const std::string& dimension, const MetricContext& context);
// Of a dimension that needs networks.
std::string score_key(const std::string& content, const std::string& dimension, const EvalNetworks& networks, const MetricContext& context);

}  // namespace megaslide
