#!/usr/bin/env bash
# The shell scripts parse, start strictly, say what they do, and refuse what they don't know.
set -euo pipefail
cd "${1:?usage: scripts.sh SOURCE-DIR}"
bad=0
complain() { echo "$*"; bad=1; }

for script in scripts/build scripts/coverage scripts/demo scripts/lint scripts/package scripts/test; do
  [[ -x $script ]] || { complain "$script: missing or not executable"; continue; }
  grep -qx 'set -euo pipefail' "$script" || complain "$script: starts without set -euo pipefail"
  "$script" --help | grep -q "^usage: $script" || complain "$script --help: no usage"
  status=0
  "$script" --no-such-option >/dev/null 2>&1 || status=$?
  ((status == 2)) || complain "$script --no-such-option: exit $status, expected 2"
done
while IFS= read -r script; do
  bash -n "$script" || complain "$script: does not parse"
done < <(find scripts tests .ci \( -name '*.sh' -o -path 'scripts/*' -o -path '.ci/*' \) -type f ! -name '*.txt' ! -name '*.py')

awk '!/^#/ && NF != 2 || !/^#/ && $2 !~ /^(build|test|package|package-lint|lint|coverage)$/ {print FILENAME ":" FNR ": expected NAME PURPOSE"; bad = 1} END {exit bad}' \
  scripts/packages.txt || bad=1
exit "$bad"
