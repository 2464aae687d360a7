#!/usr/bin/env bash
# Runs a compiler and keeps what it says. Usage: nvcc_report.sh REPORT COMMAND...
set -euo pipefail
report=${1:?usage: nvcc_report.sh REPORT COMMAND...}
shift
if ! "$@" >"$report.tmp" 2>&1; then
  cat "$report.tmp" >&2
  exit 1
fi
grep -E 'warning' "$report.tmp" >&2 || true
mv "$report.tmp" "$report"
