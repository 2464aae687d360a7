#!/usr/bin/env bash
# What each CUDA kernel takes of a multiprocessor, from ptxas' reports, against a stored table: no spills, no stack, no
# kernel that the table lacks, and not more registers or static shared memory than it says.
# Usage: resources.sh REPORT-FOLDER TABLE [NVCC]   compare; exit 77 (skipped) without reports. NVCC: the version, such as
#        13.0; registers of another one than the table's are not compared
#        resources.sh --print REPORT-FOLDER      the table of this build, to be stored after a look
#        resources.sh --occupancy REPORT-FOLDER  beside it the warps of a multiprocessor for which registers suffice, in
#        percent of those that it can hold; what dynamic shared memory leaves is each launch's own affair
set -euo pipefail
print=0
occupancy=0
[[ ${1:-} == --print ]] && { print=1; shift; }
[[ ${1:-} == --occupancy ]] && { occupancy=1; shift; }
reports=${1:?usage: resources.sh [--print|--occupancy] REPORT-FOLDER [TABLE]}

shopt -s nullglob
files=("$reports"/*.ptxas)
if ((${#files[@]} == 0)); then
  echo "no reports of ptxas in $reports: nvcc was not found, or has not run"
  exit 77
fi

table() {
  cat "${files[@]}" | c++filt | sed -e 's/(anonymous namespace):://g; s/megaslide:://g; s/([A-Za-z]*)\([0-9]\)/\1/g' | awk '
    /Compiling entry function/ {
      name = $0
      sub(/^[^\x27]*\x27(void )?/, "", name); sub(/\(.*/, "", name); gsub(/ /, "", name)
      arch = $0
      sub(/.* for \x27/, "", arch); sub(/\x27.*/, "", arch)
      stack = spills = 0
    }
    /bytes stack frame/ { stack = $1; spills = $5 + $9 }
    /Used [0-9]+ registers/ {
      shared = 0
      if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
      match($0, /Used [0-9]+/)
      print name, arch, substr($0, RSTART + 5, RLENGTH - 5), shared, stack, spills
    }' | LC_ALL=C sort
}

header='# kernel architecture registers static-shared-bytes stack-bytes spill-bytes; nvcc 13.0, see resources.sh'
if ((print)); then
  echo "$header"
  table
  exit
fi
if ((occupancy)); then
  # 65,536 registers a multiprocessor, given to warps in units of 256; 64 warps, 48 of sm_120.
  table | awk '{ warps = $2 == "sm_120" ? 48 : 64; a_warp = int(($3 * 32 + 255) / 256) * 256; n = int(65536 / a_warp); if (n > warps) n = warps
                 printf "%-72s %-7s %4d registers %4d%%\n", $1, $2, $3, 100 * n / warps }'
  exit
fi
expected=${2:?usage: resources.sh REPORT-FOLDER TABLE [NVCC]}
same=1
[[ -n ${3:-} ]] && ! grep -q "; nvcc $3," "$expected" && same=0
table | awk -v table="$expected" -v same="$same" '
  BEGIN {
    while ((getline line < table) > 0) {
      if (line ~ /^#/) continue
      split(line, f, " ")
      registers[f[1] " " f[2]] = f[3]; shared[f[1] " " f[2]] = f[4]
    }
  }
  {
    key = $1 " " $2
    ++seen[key]; ++kernels
    if (!(key in registers)) { print key ": not in the table"; bad = 1; next }
    if ($6 > 0 || $5 > 0) { print key ": " $6 " bytes of spills, " $5 " of stack"; bad = 1 }
    if (same && $3 > registers[key]) { print key ": " $3 " registers, " registers[key] " in the table"; bad = 1 }
    if ($4 > shared[key]) { print key ": " $4 " bytes of shared memory, " shared[key] " in the table"; bad = 1 }
  }
  END {
    for (key in registers) if (!(key in seen)) { print key ": in the table, not in this build"; bad = 1 }
    if (bad) print "the table of this build: tests/cuda/resources.sh --print BUILD/cuda"
    else print kernels " kernels, none takes more than the table says" (same ? "" : ", registers of another nvcc aside")
    exit bad
  }'
