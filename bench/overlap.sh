#!/usr/bin/env bash
# What streaming asynchronously gains: steps/s of stream.async true against false on an emulated link, at several ratios of
# upload time to compute time, in one run on one machine.
#   overlap.sh BIN [STEPS]
set -euo pipefail
bin=$1 steps=${2:-20}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../tests/data" && pwd)
"$bin/shard-weights" --init tiny -o "$work/model" --seed 1 -q >/dev/null
"$bin/encode-clips" "$data/clips" -o "$work/cache" --model "$work/model" --num-frames 9 --size 64x64 -q >/dev/null
field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p"; }

seconds() { # seconds ASYNC BANDWIDTH [more]: median seconds of a step
  local async=$1 bandwidth=$2
  shift 2
  rm -rf "$work/out"
  cat >"$work/run.yaml" <<EOF
model: {path: $work/model}
data: {cache: $work/cache, batch_size: 1}
train: {max_train_steps: $steps}
stream: {async: $async, link: {kind: emulated, bandwidth: $bandwidth}}
output: {output_dir: $work/out}
EOF
  "$bin/finetune" "$work/run.yaml" -q --progress never --json "$@" | field step_seconds
}

# Without a limit on the link a step is compute; its uploads are 2L - 2 layers and the two ends.
compute=$(seconds false 100GB/s)
bytes=$("$bin/plan-memory" --model "$work/model" --json | grep -o '"weights":[0-9]*' | head -1 | cut -d: -f2)
layers=4
uploaded=$(awk -v w="$bytes" -v l=$layers 'BEGIN{printf "%d", w * (2 * l - 2) / l}')
printf '%-26s %12s %12s %8s\n' 'upload : compute' 'sync s/step' 'async s/step' 'ratio'
for ratio in 0.25 0.5 1 2; do
  bandwidth=$(awk -v b="$uploaded" -v c="$compute" -v r=$ratio 'BEGIN{printf "%d", b / (c * r)}')
  sync=$(seconds false "$bandwidth")
  async=$(seconds true "$bandwidth" --trace "${TRACE:-$work/trace.json}")
  awk -v r=$ratio -v s="$sync" -v a="$async" 'BEGIN{printf "%-26s %12.4f %12.4f %8.2f\n", r, s, a, s / a}'
done
