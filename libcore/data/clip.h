// One clip from its file to the tensor that the codec takes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "data/selection.h"
#include "io/video.h"
#include "tensor/tensor.h"

namespace megaslide {

enum class ClipStatus { kKept, kCut, kRetimed, kDropped };
const char* clip_status_name(ClipStatus s);  // "kept", "cut", "retimed", "dropped"

// What became of a clip; everything but pixels.
struct ClipFacts {
  ClipStatus status = ClipStatus::kDropped;
  std::string reason;              // why dropped, or what was changed; empty when kept as it is
  std::vector<std::string> notes;  // warnings: damage, HDR, ...
  int64_t frames_declared = 0;     // by the header; 0: it states none
  int64_t frames_decoded = 0;
  int64_t frames_retimed = 0;      // after re-timing
  int64_t frames_used = 0;
  int64_t width = 0, height = 0;   // decoded, after rotation
  int64_t used_width = 0, used_height = 0;
  double fps = 0;                  // decoded pictures over the time they are shown; 0: a folder or a still has none
  double used_fps = 0;
  int rotation = 0;
  std::vector<int64_t> cuts;       // first frames, of those used, of all shots but the first (shots.h)
  std::string bucket() const;      // "64x64x17"; empty when dropped

  nlohmann::json to_json() const;
  static ClipFacts from_json(const nlohmann::json& json);  // Error when a field is missing
};

struct LoadOptions {
  bool md5 = false;    // of each decoded RGB24 picture
  bool strips = false;  // rows of small pictures
};

struct LoadedClip {
  ClipFacts facts;
  HostTensor video;                 // F32 [3, F, H, W] in [-1, 1]; empty when dropped
  std::vector<std::string> md5;
  Picture source_strip, used_strip;  // of the whole clip with what is cut in the dark, and of `video`
};

// Decodes, re-times, scales and cuts. Never throws for what the file holds: a clip that cannot be used comes back
// dropped with its reason; one that is damaged late is used up to the damage, with a note.
LoadedClip load_clip(const std::string& file, const SelectionRule& rule, const LoadOptions& options = {});

}  // namespace megaslide
