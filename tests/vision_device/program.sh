#!/usr/bin/env bash
# eval-vbench --device cuda over the mock of the CUDA runtime: the scores of the processor but for rounding; a device
# that breaks ends the run with an error that names the call. Usage: program.sh BUILD-DIR
set -euo pipefail
build=$(cd "${1:?usage: program.sh BUILD-DIR}" && pwd)
data=$(cd "$(dirname "${BASH_SOURCE[0]}")/../data" && pwd)
mocked=$build/tests/eval_vbench_mocked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "program.sh: $*" >&2; exit 1; }

mkdir "$work/w"
cp "$data/vbench/dino_hub.safetensors" "$work/w/dino_vitb16.safetensors"
score() {  # score DEVICE
  "$mocked" "$data/eval/mixed/small.mkv" --weights "$work/w" --dimension subject_consistency --dimension temporal_flickering \
    --device "$1" --threads 2 --json -q
}
score cpu >"$work/cpu.json"
score cuda >"$work/cuda.json"
[[ $(jq -r .provenance.device "$work/cuda.json") == cuda ]] || fail "the provenance does not say where networks computed"
# Features are 1.5e-6 of their norm from the processor's (networks_test.cc), cosines twice that.
jq -en --slurpfile a "$work/cpu.json" --slurpfile b "$work/cuda.json" '
  [$a[0].dimensions | keys[] as $k | .[$k].raw - $b[0].dimensions[$k].raw | fabs] | (length == 2) and (max < 5e-6)' >/dev/null ||
  fail "scores of cpu and cuda differ: $(jq -c '.dimensions | map_values(.raw)' "$work/cpu.json" "$work/cuda.json")"

if MEGASLIDE_MOCK_CUDA_FAIL=60:launch score cuda >"$work/out" 2>"$work/err"; then fail "a broken device went unnoticed"; fi
grep -q '^eval-vbench: error: .*cuda' "$work/err" || fail "the error does not name the call: $(cat "$work/err")"
[[ ! -s $work/out ]] || fail "scores of a broken device"
