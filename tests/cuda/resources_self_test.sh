#!/usr/bin/env bash
# The check of resources must notice what it is there for.
set -euo pipefail
check=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/resources.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

report() {  # report REGISTERS SHARED SPILLS
  printf '%s\n' "ptxas info    : Compiling entry function '_ZN9megaslide12_GLOBAL__N_11kEPf' for 'sm_80'" \
    "    0 bytes stack frame, $3 bytes spill stores, 0 bytes spill loads" \
    "ptxas info    : Used $1 registers, used 0 barriers, $2 bytes smem" >"$work/k.ptxas"
}
expect() {  # expect STATUS: of the check against the table
  local status=0
  "$check" "$work" "$work/table" >/dev/null || status=$?
  if ((status != $1)); then
    echo "FAILED: line ${BASH_LINENO[0]}: exit $status, expected $1"
    failures=$((failures + 1))
  fi
}

echo 'k sm_80 40 128 0 0' >"$work/table"
expect 77
report 40 128 0; expect 0
report 39 0 0; expect 0
report 41 128 0; expect 1
report 40 256 0; expect 1
report 40 128 4; expect 1
report 40 128 0
echo 'other sm_80 40 0 0 0' >>"$work/table"; expect 1
echo 'other sm_80 40 0 0 0' >"$work/table"; expect 1
"$check" --print "$work" >"$work/table"; expect 0
((failures == 0))
