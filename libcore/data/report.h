// The dataset report of encode-clips.
#pragma once
#include <string>

#include "data/encode.h"

namespace megaslide {

// {clips: [{path, place?, caption, status, reason, frames_declared, frames_decoded, frames_retimed, frames_used,
//   frames_left_over, size_decoded, size_used, fps_decoded, fps, bucket, reused, key, warnings, picture_md5?}],
//  kept, dropped, encoded, texts_encoded, buckets: [{bucket, clips}], warnings}
std::string report_json(const EncodeReport& report);
// Where the time went: "decoded 1234 frames in 5.1 s ...".
std::string stages_text(const EncodeReport& report);
// A line a clip, then a summary for each bucket.
std::string report_text(const EncodeReport& report);
// One page without outside references; `title` names the datasets.
std::string report_html(const EncodeReport& report, const std::string& title);

}  // namespace megaslide
