#!/usr/bin/env bash
# How a step grows with the length of the clips when they go through the blocks slab by slab: device peak, and time.
#   length.sh BIN [STEPS] [FRAMES_A_SLAB]
set -euo pipefail
bin=$1 steps=${2:-3} slab=${3:-4}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$bin/shard-weights" --init tiny --attention dsa -o "$work/model" --seed 1 -q >/dev/null
field() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p" "$work/result"; }

printf '%8s %8s %14s %14s %12s %14s\n' frames tokens 'peak planned' 'peak measured' 's a step' 'us a token'
for frames in 17 65 257 1025; do
  "$bin/make-motion-clips" -o "$work/clips-$frames" --count 1 --num-frames "$frames" --size 64x64 --seed 1 -q >/dev/null
  "$bin/encode-clips" "$work/clips-$frames" -o "$work/cache-$frames" --model "$work/model" --num-frames "$frames" --size 64x64 -q >/dev/null
  cat >"$work/run.yaml" <<YAML
model: {path: $work/model}
data: {cache: $work/cache-$frames, batch_size: 1}
train: {max_train_steps: $steps}
stream: {slabs: $slab, link: {kind: emulated}}
output: {output_dir: $work/out-$frames}
YAML
  planned=$("$bin/plan-memory" --run "$work/run.yaml" --json | sed -n 's/.*"peak":\([0-9]*\).*/\1/p')
  "$bin/finetune" "$work/run.yaml" -q --progress never --json >"$work/result"
  tokens=$(grep -o '"tokens":[0-9]*' "$work/out-$frames/metrics.jsonl" | head -1 | cut -d: -f2)
  seconds=$(field step_seconds)
  awk -v f="$frames" -v t="$tokens" -v p="$planned" -v m="$(field device_peak_bytes)" -v s="$seconds" \
    'BEGIN{printf "%8d %8d %14d %14d %12.4f %14.2f\n", f, t, p, m, s, 1e6 * s / t}'
done
