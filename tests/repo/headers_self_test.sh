#!/usr/bin/env bash
# The check of the headers must find what it is there for, and nothing else.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../support/wrong_trees.sh" "$here/headers.sh"

for header in nlohmann/json.hpp CLI/CLI.hpp yaml-cpp/yaml.h oneapi/dnnl/dnnl.hpp regex fmt/format.h fmt/ranges.h filesystem \
  hwy/highway.h iostream fstream libavcodec/avcodec.h libswscale/swscale.h; do
  expect bad libcore/io/a.h '#pragma once' "#include <$header>"
  expect good libcore/io/a.cc "#include <$header>"
done
expect bad kernels/norm/norm.h '#  include <hwy/highway.h>'
expect bad kernels/norm/norm.cuh '#include <fmt/format.h>'
expect bad tools/common/flags.h '#include <CLI/CLI.hpp>'
expect bad libcore/io/video_libav/av.h '#include <filesystem>'
expect bad libcore/io/av.h '#include <libavutil/opt.h>'
expect good libcore/io/video_libav/av.h '#include <libavutil/opt.h>' '#include <libswscale/swscale.h>'
expect good libcore/io/a.h '#include <nlohmann/json_fwd.hpp>' '#include <fmt/core.h>' '#include <vector>' '#include "filesystem"'
expect good kernels/norm/norm-inl.h '#include <hwy/highway.h>'

end_of_trees "every heavy header is found"
