#!/usr/bin/env bash
# Checks the floors of the tree over #include lines, and that library code neither exits, prints nor reads the
# environment. Usage: check.sh SOURCE-DIR; prints each violation, exits 1 when there is one.
set -euo pipefail
cd "${1:?usage: check.sh SOURCE-DIR}"

files=$(find libcore kernels tools tests bench -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) \
  2>/dev/null | LC_ALL=C sort) || true
[[ -n $files ]] || { echo "no sources under $PWD"; exit 1; }

# shellcheck disable=SC2086  # the list is split on purpose: no file here has a blank in its name
awk '
BEGIN {
  # room: the rooms (or single headers) it may include beside itself
  allow["base"]      = ""
  allow["tensor"]    = "base"
  allow["text"]      = "base"
  allow["kernels"]   = "base tensor/dtype.h tensor/moment_levels.h"
  allow["config"]    = "base"
  allow["io"]        = "base tensor config"
  allow["device"]    = "base tensor config kernels"
  allow["stream"]    = "base tensor config io kernels device model/layer.h model/init_model.h"
  allow["model"]     = "base text tensor config io kernels"
  allow["vision"]    = "base text tensor config io kernels model/model_memory.h"
  allow["attention_check"] = "base tensor config io kernels"
  allow["diffusion"] = "base tensor config io kernels device stream model"
  allow["data"]      = allow["diffusion"] " diffusion"
  allow["train"]     = allow["data"] " data"
  allow["plan"]      = allow["train"] " train"
  allow["eval"]      = allow["train"] " plan vision text"
  allow["tools"]     = "base tensor config io kernels device stream model attention_check diffusion data train plan eval vision"

  # third-party header (pattern): where it may appear (pattern of paths)
  third["^CLI/"]                                   = "^tools/"
  third["^yaml-cpp/"]                              = "^libcore/config/"
  third["^lib(av|sw)[a-z]*/"]                      = "^libcore/io/"
  third["^(cuda|cublas|cudnn|nvrtc|driver_types|mma)"] = "^(kernels|libcore/device)/"
  third["^(oneapi/|dnnl)"]                         = "^kernels/gemm/"
  third["^hwy/"]                                   = "^kernels/"
  third["^liburing"]                               = "^libcore/io/"
  third["^png\\.h"]                                = "^libcore/io/"
  third["^zip\\.h"]                                = "^libcore/io/"
  third["^zlib\\.h"]                               = "^(libcore|tests)/text/"
  third["^openssl/"]                               = "^libcore/base/"
  third["^sentencepiece"]                          = "^libcore/text/"
  third["^(gtest|gmock)/"]                         = "^tests/"
  third["^benchmark/"]                             = "^bench/"
}

function room_of(path, part) {
  split(path, part, "/")
  return part[1] == "libcore" ? part[2] : part[1]
}
function complain(text) {
  print FILENAME ":" FNR ": " text
  bad = 1
}
function check_ours(room, header, target, list, n, i, word) {
  target = room_of(header)
  if (!(target in allow) && target != "tests" && target != "bench") return
  if (room == "tests" || room == "bench" || target == room) return
  if (!(room in allow)) { complain("unknown room " room ": give it a line in tests/layering/check.sh"); return }
  n = split(allow[room], list, " ")
  for (i = 1; i <= n; ++i) if (list[i] == target || list[i] == header) return
  complain(room " must not include " header)
}
function check_third(header, pattern) {
  for (pattern in third)
    if (header ~ pattern && FILENAME !~ third[pattern] && FILENAME !~ /^(tests|bench)\//)
      complain("<" header "> belongs to " third[pattern])
}

FNR == 1 { room = room_of(FILENAME); has_main = 0 }
FILENAME ~ /^tools\// && /^int main\(/ { has_main = 1 }
FNR > 80 && has_main == 1 {
  complain("a file with main() has at most 80 lines: the work belongs to libcore")
  has_main = 2
}
/^[ \t]*#[ \t]*include/ {
  header = $0
  sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", header)
  sub(/[>"].*$/, "", header)
  sub(/^libcore\//, "", header)
  if ($0 ~ /"/ && header ~ /\.\.\// && room != "tests") complain("include paths start at a room, not at " header)
  check_ours(room, header)
  check_third(header)
  next
}
FILENAME ~ /^(libcore|kernels)\// {
  line = $0
  gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
  sub(/\/\/.*$/, "", line)
  if (FILENAME == "libcore/base/error.cc") next  # check_failed: prints and aborts by design
  if (line ~ /std::c(out|err|log)[^a-z]/ || line ~ /(^|[^a-zA-Z0-9_])f?printf\(/ || line ~ /(^|[^a-zA-Z0-9_])v?fprintf\(/ ||
      line ~ /(^|[^a-zA-Z0-9_:])puts\(/ || line ~ /fmt::print\(/)
    complain("library code does not print: use base/log.h")
  if (line ~ /(^|[^a-zA-Z0-9_.>])(_?exit|quick_exit)\(/) complain("library code does not exit: throw Error")
  if (line ~ /(^|[^a-zA-Z0-9_])(secure_)?getenv\(/) complain("library code does not read the environment")
}
END { exit bad }
' $files
echo "$(wc -l <<<"$files") files, no violation"
