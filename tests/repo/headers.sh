#!/usr/bin/env bash
# No header of ours pulls the world: those that are slow to compile are included by the sources that need them, and headers take
# a declaration (nlohmann/json_fwd.hpp, fmt/core.h, `namespace CLI { class App; }`). Usage: headers.sh SOURCE-DIR; prints each that
# does, exits 1 when there is one.
set -euo pipefail
cd "${1:?usage: headers.sh SOURCE-DIR}"

# "-inl.h" is the code of one source, compiled once an instruction set.
headers=$(find libcore kernels tools -type f \( -name '*.h' -o -name '*.cuh' \) ! -name '*-inl.h' 2>/dev/null | LC_ALL=C sort) || true
[[ -n $headers ]] || { echo "no headers under $PWD"; exit 1; }

# shellcheck disable=SC2086  # the list is split on purpose: no file here has a blank in its name
awk '
BEGIN {
  # Beside each what a file that includes nothing else takes to parse (g++ 12, one core) and its lines.
  heavy["^nlohmann/json\\.hpp$"]                 # 0.9 s,  96,000 (json_fwd.hpp 0.26 s, 42,000)
  heavy["^CLI/"]                                 # 1.1 s,  81,000
  heavy["^yaml-cpp/"]                            # 0.45 s, 64,000
  heavy["^(oneapi/|dnnl)"]                       # 0.5 s,  60,000
  heavy["^regex$"]                               # 0.3 s,  55,000
  heavy["^fmt/(format|ranges|chrono|std|ostream|color|os|printf|compile|args|xchar)\\.h$"]  # 0.33 s, 47,000 (core.h 0.16 s, 26,000)
  heavy["^filesystem$"]                          # 0.3 s,  41,000
  heavy["^hwy/"]                                 # 0.3 s,  36,000, once an instruction set
  heavy["^(iostream|sstream|fstream)$"]          # 0.2 s,  28,000
  heavy["^lib(av|sw)[a-z]*/"]                    # C, with macros in common names

  # header: what it may include. av.h is of the plug-in alone: its sources are the only ones that see it.
  allow["libcore/io/video_libav/av.h"] = "^lib(av|sw)"
}
/^[ \t]*#[ \t]*include[ \t]*</ {
  header = $0
  sub(/^[ \t]*#[ \t]*include[ \t]*</, "", header)
  sub(/>.*$/, "", header)
  if (FILENAME in allow && header ~ allow[FILENAME]) next
  for (pattern in heavy)
    if (header ~ pattern) { print FILENAME ":" FNR ": <" header "> is slow to compile: include it in the sources"; bad = 1 }
}
END { exit bad }
' $headers
echo "$(wc -l <<<"$headers") headers, none pulls the world"
