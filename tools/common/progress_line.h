// Draws base/progress.h on standard error: one line redrawn in place on a terminal, sparse lines elsewhere.
#pragma once
#include <string>

#include "base/progress.h"
#include "common/run_tool.h"

namespace megaslide {

// "encode 12/40 clips (30%), 3.2 clips/s, 0:08 left, a.mp4"; "encode 40 clips in 12.5 s" when finished.
std::string format_progress(const ProgressEvent& event);

// auto: as above, nothing with -q, and nothing for what ends within seconds off a terminal; always: also with -q and
// for short work; never: an empty sink.
ProgressSink make_progress_sink(ProgressMode mode, bool quiet);

}  // namespace megaslide
